"""Define plan and results of a strategy benchmark: strategies measured in turns, in one set of processes."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudiag.model.benchmarks.prediction import Candidate, Gradients, Prediction
from gpudiag.model.facts import Collective
from gpudiag.model.job import MemoryFormat, Precision
from gpudiag.model.quantities import Count, Devices, Milliseconds, Seconds

STRATEGY_BENCHMARK_SCHEMA = "gpudiag/contest/1"

#: Reason why a candidate was never measured.
NO_TIME = "there was no time left to measure it"

#: Minimum number of rounds to rank a strategy, because intervals of fewer rounds are not informative.
RANKED_ROUNDS = 3


def benchmark_file(workload: str) -> str:
    """Return the name of one workload's result in the run directory."""
    return f"contest-{workload}.json"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A workload and its candidates.

    Attributes:
        workload: a built-in name.
        batch_size: samples per device and step; None for the workload's default.
        candidates: the candidates, including `independent`.
        cannot: label of a candidate that cannot run here → reason.
        finalists: number of candidates to measure besides `independent`, the best by prediction first; 0 for all.
        seconds: duration of measuring in turns.
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
    """The entries that a set of processes measures, one after another.

    Attributes:
        p2p: False if peer access is switched off.
        least_rounds, most_rounds: minimum and maximum number of turns of each candidate.
        block_ms: duration of a turn.
        least_steps: minimum number of steps of a turn.
        measure: False to stop after measuring gradients, compute and transports.
        began: Unix time of the request in seconds.
        limit_s: approximate time from `began` to the end of the processes. Candidates without time left are skipped.
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
    """Measurements of one candidate.

    Attributes:
        round_ms: mean step of the candidate's turn in each round, on the slowest rank. For a clearly slow candidate,
            which has no turns, the steps of its warm-up.
        steps: number of measured steps per turn.
        cannot: reason why the candidate was not measured, or not to the end.
    """

    candidate: Candidate
    round_ms: tuple[Milliseconds, ...] = ()
    steps: Count = 0
    cannot: str | None = None


class StrategyBenchmark(msgspec.Struct, frozen=True, kw_only=True):
    """A workload's result (`gpudiag/contest/1`).

    Attributes:
        p2p: False if peer access was switched off.
        peer_access: whether every pair of GPUs copies directly; None without GPUs.
        gradients: measured sizes, compute and time at which each gradient is ready.
        transports: measured all-reduces of the sizes of the gradients' buckets.
        predictions: predicted costs of all candidates, from the facts, `gradients` and `transports`, before measuring.
        turns: measurements of the candidates that were measured or that failed.
        seconds: phase → duration; `start` ends when the processes run.
        setup_s: candidate → duration of its phase `setup`.
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
