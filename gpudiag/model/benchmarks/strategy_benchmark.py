"""Several strategies on one workload, measured by turns in one set of processes: what is asked, and what came out."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudiag.model.benchmarks.prediction import Candidate, Gradients, Prediction
from gpudiag.model.facts import Collective
from gpudiag.model.job import MemoryFormat, Precision
from gpudiag.model.quantities import Count, Devices, Milliseconds, Seconds

STRATEGY_BENCHMARK_SCHEMA = "gpudiag/contest/1"


#: Why a candidate has no turns where the time was up before they began.
NO_TIME = "there was no time left to measure it"


#: Of fewer rounds no interval says much, and they rank nothing.
RANKED_ROUNDS = 3


def benchmark_file(workload: str) -> str:
    """Name of one workload's result in the run directory."""
    return f"contest-{workload}.json"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One workload and its candidates.

    Attributes:
        workload: a built-in name.
        batch_size: samples per device and step; None for the workload's own.
        precision, memory_format: as on the command line.
        candidates: what may be measured, `independent` among it.
        cannot: labels of those that cannot run here, and why.
        finalists: how many are measured besides `independent`: the best by prediction. 0 for all.
        seconds: how long measuring by turns may take.
    """

    workload: str
    batch_size: Count | None = None
    precision: Precision | None = None
    memory_format: MemoryFormat = "nchw"
    candidates: tuple[Candidate, ...]
    cannot: dict[str, str] = {}
    finalists: Count = 3
    seconds: Seconds = 20.0


class StrategyBenchmarkPlan(msgspec.Struct, frozen=True, kw_only=True, tag="strategy-benchmark"):
    """What a set of processes is to measure, one entry after another.

    Attributes:
        device: what is trained on.
        p2p: False where peer access is switched off.
        least_rounds, most_rounds: how often each candidate has its turn.
        block_ms: how long a turn is timed for.
        least_steps: and for how many steps at least.
        measure: False to stop when gradients, compute and transports have been measured.
        began: Unix time in seconds at which all of it was asked for.
        limit_s: so long after that the processes have ended, about. Candidates for which no time is left are not
            measured. None for no limit.
    """

    device: Literal["cuda", "cpu"]
    devices: Devices
    p2p: bool = True
    entries: tuple[Entry, ...]
    least_rounds: Count = 5
    most_rounds: Count = 12
    block_ms: Milliseconds = 300.0
    least_steps: Count = 4
    measure: bool = True
    began: float = 0.0
    limit_s: Seconds | None = None


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """What one candidate's turns took.

    Attributes:
        candidate: which.
        round_ms: mean step of its turn in each round, of the slowest rank. Of one that is slow beyond doubt, what was
            seen of it while it warmed up: it has no turns.
        steps: timed steps per turn.
        cannot: why it was not measured, or not to the end.
    """

    candidate: Candidate
    round_ms: tuple[Milliseconds, ...] = ()
    steps: Count = 0
    cannot: str | None = None


class StrategyBenchmark(msgspec.Struct, frozen=True, kw_only=True):
    """One workload's result (`gpudiag/contest/1`).

    Attributes:
        p2p: False where peer access was switched off.
        peer_access: whether every pair of GPUs copies directly; None without GPUs.
        gradients: sizes, compute and when each gradient is there, as measured.
        transports: all-reduces of the sizes of its buckets.
        predictions: of all candidates, from the facts, `gradients` and `transports`, made before any was measured.
        turns: of the candidates that were measured, or that failed.
        seconds: where the time went, by phase; `start` is what it took until the processes ran.
        setup_s: of the phase `setup`, by candidate.
    """

    schema: str = STRATEGY_BENCHMARK_SCHEMA
    workload: str
    device_name: str
    devices: Devices
    batch_size: Count
    p2p: bool
    peer_access: bool | None = None
    precision: str
    memory_format: str
    gradients: Gradients
    transports: tuple[Collective, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    turns: tuple[Turns, ...] = ()
    software: dict[str, str] = {}
    seconds: dict[str, Seconds] = {}
    setup_s: dict[str, Seconds] = {}
