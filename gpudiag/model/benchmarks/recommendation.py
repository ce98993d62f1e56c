"""Recommendation: which strategy to take, by how much, and why (`gpudiag/recommendation/1`)."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudiag.model.benchmarks.prediction import Compress
from gpudiag.model.benchmarks.strategy_benchmark import RANKED_ROUNDS
from gpudiag.model.job import RunOptions
from gpudiag.model.quantities import Count, Devices, Difference, Milliseconds, Rate, Seconds

RECOMMENDATION_SCHEMA = "gpudiag/recommendation/1"
RECOMMENDATION_FILE = "recommendation.json"


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy with its options, fastest first.

    Attributes:
        strategy: name and options, as `gpudiag profile --strategy` takes them.
        predicted_step_ms: from facts, gradient sizes and compute; None where it cannot be told.
        exposed_ms: what the prediction adds to a step without exchange.
        exchange_ms: the exchange alone, as predicted.
        measured_step_ms: mean step of the slowest rank; None where it was not measured.
        ci95: its 95 % confidence interval.
        rounds: in how many it was measured.
        samples_per_s: of all devices, by the measurement where there is one, else by the prediction.
        slower_percent: than the fastest measured one, turn by turn; None where either was not measured.
        slower_ci95: its interval.
        unranked: why its measurement ranks it nowhere: it may be faster or slower than the others.
        reason: why it costs what it does.
        lossy: gradients lose digits on the way.
        cannot: why it cannot run here, or failed.
    """

    strategy: str
    predicted_step_ms: Milliseconds | None = None
    exposed_ms: Difference | None = None
    exchange_ms: Milliseconds | None = None
    measured_step_ms: Milliseconds | None = None
    ci95: tuple[Difference, Difference] | None = None
    rounds: Count = 0
    samples_per_s: Rate | None = None
    slower_percent: Difference | None = None
    slower_ci95: tuple[Difference, Difference] | None = None
    unranked: str | None = None
    reason: str = ""
    lossy: bool = False
    cannot: str | None = None

    def step_words(self) -> str:
        """The measured step in ms: `154.00 ± 4.10`; `about 154` where its interval says nothing."""
        if self.measured_step_ms is None or self.ci95 is None:
            return "—"
        half = (self.ci95[1] - self.ci95[0]) / 2
        if self.rounds < RANKED_ROUNDS or half > self.measured_step_ms / 2:
            return f"about {self.measured_step_ms:.3g}"
        return f"{self.measured_step_ms:.2f} ± {half:.2f}"


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """What the recommended strategy saves per step against another: `over`."""

    over: str
    ms: Difference
    percent: Difference
    """Of the other one's step."""
    measured: bool


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """The step without any exchange (`independent`): no strategy can be faster."""

    step_ms: Milliseconds
    samples_per_s: Rate | None
    percent_left: Difference | None
    """What the recommended strategy's step could still lose."""
    measured: bool


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """The step that is expected of a strategy on so many devices, each with the same batch."""

    strategy: str
    devices: Devices
    step_ms: Milliseconds
    samples_per_s: Rate | None
    speedup: Rate
    efficiency: Rate


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict and what it rests on.

    Attributes:
        verdict: `winner`, or `tie` when the best cannot be told apart, or what may be as fast was not measured.
        recommended: name and options of the strategy to take; among tied ones the plainest whose step is known.
        tied: those that cannot be told from the best, the recommended one among them; empty for a winner.
        reason: in words.
        basis: `measured`, or `predicted` where nothing was run.
        flags: options for `gpudiag profile`.
        code: the change to a training loop of one's own.
        notes: what limits the verdict.
        assumed: figures that were not measured, and what was taken for them.
        seconds: how long it took.
    """

    schema: str = RECOMMENDATION_SCHEMA
    verdict: Literal["winner", "tie"]
    recommended: str
    tied: tuple[str, ...] = ()
    reason: str
    basis: Literal["measured", "predicted"]
    workload: str
    device_name: str = ""
    devices: Devices
    batch_size_per_device: Count | None = None
    peer_access: bool | None = None
    gain: Gain | None = None
    ceiling: Ceiling | None = None
    flags: tuple[str, ...] = ()
    code: str = ""
    ranking: tuple[Ranked, ...] = ()
    scaling: tuple[Expected, ...] = ()
    notes: tuple[str, ...] = ()
    assumed: dict[str, str] = {}
    seconds: Seconds | None = None


class RecommendRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a person asks `gpudiag recommend` for.

    Attributes:
        run: of the training that is asked about.
        exact: leave out strategies that round gradients.
        compress: to what the others round them.
        every: measure all strategies, not the most promising ones only.
        only: labels of the strategies to consider; empty for all.
        budget_s: how long all of it may take, about.
    """

    run: RunOptions
    exact: bool = False
    compress: Compress = "bf16"
    every: bool = False
    only: tuple[str, ...] = ()
    budget_s: float = 180.0
