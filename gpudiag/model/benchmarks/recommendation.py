"""Define the recommendation of a strategy, with savings and reasons (`gpudiag/recommendation/1`)."""

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
    """A strategy of the ranking, with its predicted and measured step times.

    Attributes:
        strategy: name and options, as in `gpudiag profile --strategy`.
        predicted_step_ms: step predicted from facts, gradient sizes and compute; None if unknown.
        exposed_ms: predicted time that communication adds to the step.
        exchange_ms: predicted time of communication alone.
        measured_step_ms: mean step of the slowest rank; None if not measured.
        ci95: 95 % confidence interval of `measured_step_ms`.
        rounds: number of measured rounds.
        samples_per_s: throughput of all devices, measured if possible, else predicted.
        slower_percent: slowdown relative to the fastest measured strategy, compared round by round; None if unmeasured.
        slower_ci95: 95 % confidence interval of `slower_percent`.
        unranked: reason why the measurement gives no rank, so that the strategy may be faster or slower than others.
        reason: reason for the predicted cost.
        lossy: whether gradients lose precision.
        cannot: reason why the strategy cannot run here, or why it failed.
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
        """Return the measured step in ms, for example `154.00 ± 4.10`; `—` if it was not measured.

        Return `about 154` if there are too few rounds for an interval, or if the interval is wider than the step.
        """
        if self.measured_step_ms is None or self.ci95 is None:
            return "—"
        half = (self.ci95[1] - self.ci95[0]) / 2
        if self.rounds < RANKED_ROUNDS or half > self.measured_step_ms / 2:
            return f"about {self.measured_step_ms:.3g}"
        return f"{self.measured_step_ms:.2f} ± {half:.2f}"


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """Step time that the recommended strategy saves compared with strategy `over`; `percent` is relative to `over`."""

    over: str
    ms: Difference
    percent: Difference
    measured: bool


class StepCeiling(msgspec.Struct, frozen=True, kw_only=True):
    """The step without communication (`independent`), which no strategy can beat.

    `percent_left` is 100 * (1 - `step_ms` / step of the recommended strategy).
    """

    step_ms: Milliseconds
    samples_per_s: Rate | None
    percent_left: Difference | None
    measured: bool


class ExpectedStep(msgspec.Struct, frozen=True, kw_only=True):
    """Expected step of a strategy on several devices, with unchanged batch per device."""

    strategy: str
    devices: Devices
    step_ms: Milliseconds
    samples_per_s: Rate | None
    speedup: Rate
    efficiency: Rate


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict and its basis.

    Attributes:
        verdict: `winner`, or `tie` if several strategies may be equally fast, including unmeasured strategies.
        recommended: name and options of the strategy to use; of tied strategies, the simplest whose step is known.
        tied: strategies that cannot be distinguished from the best, including the recommended one; empty for a winner.
        basis: `measured`, or `predicted` if nothing was run.
        flags: options for `gpudiag profile`.
        code: the change to a custom training loop.
        notes: limits of the verdict.
        assumed: name of a figure that was not measured → assumed value.
        seconds: duration of the whole command.
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
    ceiling: StepCeiling | None = None
    flags: tuple[str, ...] = ()
    code: str = ""
    ranking: tuple[Ranked, ...] = ()
    scaling: tuple[ExpectedStep, ...] = ()
    notes: tuple[str, ...] = ()
    assumed: dict[str, str] = {}
    seconds: Seconds | None = None


class RecommendRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `gpudiag recommend`.

    Attributes:
        run: options of the training.
        exact: leave out strategies that round gradients.
        compress: precision to which compressing strategies round gradients.
        every: measure all strategies instead of the most promising strategies only.
        only: labels of the strategies to consider; empty for all.
        budget_s: approximate duration of the whole command.
    """

    run: RunOptions
    exact: bool = False
    compress: Compress = "bf16"
    every: bool = False
    only: tuple[str, ...] = ()
    budget_s: float = 180.0
