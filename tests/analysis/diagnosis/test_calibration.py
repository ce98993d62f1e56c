"""Test that every calibrated constant has a source, and that outcomes just below and just above it differ.

`CASES.of(NAME)` registers a function that is called with a value just below and just above the constant NAME.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace as Of
from typing import Any, cast
from unittest import mock

import msgspec
import numpy as np
import pytest

from gpudiag.analysis.diagnosis import calibration, engine, places, scoring
from gpudiag.analysis.diagnosis import case as case_module
from gpudiag.analysis.diagnosis.hardware.clock_mismatch import ClockMismatch
from gpudiag.analysis.diagnosis.hardware.degraded_link import DegradedLink
from gpudiag.analysis.diagnosis.hardware.foreign_process import ForeignProcess
from gpudiag.analysis.diagnosis.hardware.peer_slower import PeerSlowerThanHost
from gpudiag.analysis.diagnosis.hardware.rule import raw_gb_per_s
from gpudiag.analysis.diagnosis.hardware.shared_uplink import SharedUplink
from gpudiag.analysis.diagnosis.kernels.slow_compute import is_reported
from gpudiag.analysis.diagnosis.rules import more_work, pipeline_bubble, straggler, uneven_stages
from gpudiag.analysis.diagnosis.rules.communication_advice import _tiny_bytes, unused_nvlink_gb_per_s
from gpudiag.analysis.diagnosis.rules.communication_bound import CommunicationBound
from gpudiag.analysis.diagnosis.rules.launch_bound import LaunchBound
from gpudiag.analysis.diagnosis.rules.rule import notable, severity_of
from gpudiag.analysis.diagnosis.significance import Significance
from gpudiag.analysis.diagnosis.simulation import (
    build,
    components,
    contention,
    counterfactuals,
    cpu_chain,
    host_chain,
    profiler_cost,
    schedule,
    streams,
)
from gpudiag.analysis.diagnosis.simulation.build import build_graph
from gpudiag.analysis.diagnosis.simulation.graph import NONE, HostBlock
from gpudiag.analysis.diagnosis.simulation.host_time import untraced_from_ns
from gpudiag.analysis.diagnosis.simulation.imbalance import Excess
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf, build_what_if, fit_step_time
from gpudiag.analysis.parallelism.schedule import PipelineSchedule
from gpudiag.analysis.timeline import build_timeline
from gpudiag.intervals import EMPTY, Intervals
from gpudiag.model import timeline as model_of_timeline
from gpudiag.model.analysis import Finding
from gpudiag.model.event import Direction, EventKind, Role
from gpudiag.model.facts import GpuProcess
from gpudiag.model.timeline import HostSteps, OpClass
from gpudiag.units import NS_PER_MS
from tests.analysis.diagnosis.cases import case_of, diagnosis_of
from tests.analysis.diagnosis.records import run_of
from tests.analysis.diagnosis.rule_examples.jobs import DDP, Job, all_reduce, fetch, kernels, python, silence
from tests.analysis.diagnosis.rule_examples.machines import gpu, host_copies, loaded, machine, peer_copies, together
from tests.analysis.diagnosis.test_unused_nvlink import H200S
from tests.calibration_cases import KINDS, Cases, figures_in, numbers_in
from tests.timeline_builder import TraceBuilder

FOLDER = Path(engine.__file__).parent
CASES = Cases(calibration)
CALLS = calibration.PARTS_OF_STEP * calibration.FEWEST_CALLS
#: Numeric constants that may be outside of calibration.py, with the reason.
ELSEWHERE = {
    "_GB_PER_S": "a table of data sheets",
    "_COST_FACTOR": "of a confidence interval that decides no finding",
    "_HIGHEST_COST_NS": "of a confidence interval that decides no finding",
    "_DRIFT_SCATTERS": "of a confidence interval that decides no finding",
    "_DRIFT_STEPS": "of a confidence interval that decides no finding",
    "_MOST_DRIFT": "of a confidence interval that decides no finding",
    "_HOST_DRIFT": "of a confidence interval that decides no finding",
    "_RECORDING_SHARE": "of a confidence interval that decides no finding",
    "_DEEPEST_NESTING": "bounds a search",
    "_MOST_BETWEEN": "bounds a search",
    "_MOST_MODULES": "limits what a report shows",
    "_MOST_NODES": "bounds a search",
    "_KNOWN_LINE": "selects advice",
    "_COVERED": "bounds a search",
    "_MOST_LINES": "bounds a search",
    "_REACHED_FP32": "of an estimate that is given with an interval",
    "_REACHED_TENSOR": "of an estimate that is given with an interval",
    "_CONVERSIONS_LEFT": "of an estimate that is given with an interval",
    "_NORMALIZATION_LEFT": "of an estimate that is given with an interval",
    "_CUDNN_NORMALIZATION_REACHED": "of an estimate that is given with an interval",
    "_DEPTHWISE_LEFT": "of an estimate that is given with an interval",
    "_SCORES_LEFT": "of an estimate that is given with an interval",
    "_PRODUCTS_LEFT": "of an estimate that is given with an interval",
    "_UPDATE_LEFT": "of an estimate that is given with an interval",
    "_SMALL_UPDATE_LEFT": "of an estimate that is given with an interval",
    "_UPDATE_HOST_LEFT": "of an estimate that is given with an interval",
    "_FUSED_LEFT": "of an estimate that is given with an interval",
    "_MOST_STEPS": "bounds a search",
    "_MAX_CONCURRENT": "bounds a search",
    "_NEVER": "the index of a variable",
    "_ONE_HELD_UP_PER_NS": "bounds time",
    "_BISECTIONS": "how finely an overhead is fitted",
    "_TOLERANCE": "convergence of a simulation or a fit",
    "_MAX_ITERATIONS": "convergence of a simulation",
    "_MIN_ITERATIONS": "convergence of a simulation",
    "_TABLE_ENTRIES_PER_KERNEL": "bounds memory",
    "_NEIGHBOURS": "the order of a search",
    "_MOST_PLACES": "limits what a report shows",
    "_MOST_FRAMES": "limits what a report shows",
    "_MOST_NAMES": "limits what a report shows",
    "_ORDER": "the order of what is shown",
    "NONE": "no index",
    "_GB_PER_S_PER_LANE": "the standard's own table",
    "RESNET50_GRADIENT_BYTES": "an illustration",
    "DDP": "an example",
    "_HOST_THREAD": "an example",
    "_COMPUTE_STREAM": "an example",
    "_COMMUNICATION_STREAM": "an example",
    "_LATENCY_NS": "an example",
    "_GAP_NS": "an example",
    "_ORIGIN_NS": "an example",
    "_MIB_256": "an example",
}


def findings_of(job: Job) -> list[Finding]:
    return list(engine.diagnose(case_of(job.traces())).findings)


def what_if_of(job: Job) -> WhatIf:
    what_if = case_of(job.traces()).what_if
    assert what_if is not None
    return what_if


# Severity and scoring of findings.

CASES.of("WARNING_PERCENT")(severity_of)
CASES.of("CRITICAL_PERCENT")(severity_of)
CASES.of("NOTABLE_PERCENT")(lambda at: notable(at, 100.0))
CASES.of("ESTIMATED_PERCENT")(lambda at: is_reported(at, 100.0))
CASES.of("NOTABLE_MS")(lambda at: notable(at, 1.0))
CASES.of("SURE")(scoring.grade)
CASES.of("FAIRLY_SURE")(scoring.grade)
CASES.of("BEYOND_CHANCE")(
    lambda at: Excess(by_rank={}, by_step={0: (at - 1, at + 1)}).steady(0)  # the standard error is 1
)


def weighed(kind: str, gain_ms: float) -> Any:
    return Of(proposal=Of(kind=kind), savings_ms=gain_ms, finding=Finding(code=kind, severity="info"))


@CASES.of("SAME_AMOUNT")
def same_amount(at: float) -> object:
    return scoring._stays([weighed("waste", 10.0)], np.array([10.0]), np.array([10.0 * (1 + at)])).tolist()


@CASES.of("AS_RECORDED")
def waste_before_work(at: float) -> object:
    first, _ = scoring.in_order([weighed("communication", 10.0), weighed("waste", 10 * (1 - at))])
    return first.savings_ms == 10


@CASES.of("WORTH_FIRST")
def waste_before_launching(at: float) -> object:
    waste = weighed("waste", 10 * at)
    waste.finding = Finding(code="host-stall", severity="warning", recoverable_percent=10.0)
    first, _ = scoring.in_order([weighed("launching", 10.0), waste])
    return first.savings_ms == 10


@CASES.of("CLEARLY_MORE")
def communication_of_calls_only(at: float) -> object:
    """Return whether communication has savings: its host calls alone save 1 ms, and launch overhead saves `at` ms."""
    communication = Of(kind="communication", edit=lambda *_: 1.0, beyond=lambda *_: 1.0)
    launching = Of(kind="launching", edit=lambda *_: at, beyond=None)
    what_if: Any = Of(corrected=0.0, now_ms=10.0, savings_ms=list, saving_ms=lambda costs, _: costs)
    return scoring.savings_ms(what_if, cast("Any", [communication, launching]))[0] > 0


@CASES.of("POOR_SIMULATION")
def trusted_less(at: float) -> object:
    case: Any = Of(slowest_ms=10.0, unprofiled_ms=None)
    what_if: Any = Of(simulated_ms=10 * (1 + at), corrected_ms=10.0, unprofiled_ms=None)
    finding = Finding(code="host-stall", severity="info", confidence="high")
    return engine._weakened(case, what_if, finding, set()).confidence


@CASES.of("SIMULATION_ERROR")
def timed_or_corrected(at: float) -> object:
    now = WhatIf.__dict__["now_ms"].fget(Of(unprofiled_ms=10.0, corrected_ms=10 * (1 + at)))
    return now == 10


@CASES.of("UNLIKE_STEP")
def unlike(at: float) -> object:
    track = Of(window_steps=np.arange(6), rank=0)
    of = Of(tracks=[track], attribution=Of(tracks=[Of(step_ns=np.array([1000.0] * 5 + [1000 * at]))]))
    return bool(case_module._outlier_steps(of))  # type: ignore[arg-type]


@CASES.of("FEWEST_STEPS_LEFT")
def few_left(at: int) -> object:
    """Return whether an outlier after `at` analysed steps is left out; unprofiled steps agree with the other steps."""
    job = Job(ranks=1, step=(kernels(10),), steps=at + 3, once={at + 2: (silence(200),)})
    timeline = build_timeline(job.traces())
    with mock.patch("tests.analysis.diagnosis.cases.without_outlier_steps", lambda case: case):
        case = run_of(case_of(job.traces()), [10.0, 10.1, 9.9])
    return case_module.without_outlier_steps(case).steps < len(timeline.tracks[0].window_steps)


@CASES.of("MOST_OUTLIERS", 2, 3)
def many_outliers(at: int) -> object:
    """Return whether steps are left out if the last `at` of eight analysed steps are outliers."""
    job = Job(ranks=1, step=(kernels(10),), steps=10, once={9 - i: (silence(200),) for i in range(at)})
    return case_of(job.traces()).steps < 8


# Limits of profiler overhead.


def host_graph(busy: Any, *, events: int = 1, ranks: int = 1) -> Any:
    """Return a graph with one step per rank, of host nodes that work for `busy` ns each."""
    each = np.asarray(busy, np.float64)
    nodes = len(each) // ranks
    none = np.zeros(len(each))
    host = Of(
        time=none,
        busy=each, events=np.full(len(each), events), input=none, before_first_op=none, untraced=none, profiler=none,
        process=np.repeat(np.arange(ranks), nodes), step=np.zeros(len(each), np.int64),
        row=np.arange(len(each)), block=np.zeros(len(each), np.uint8),
    )  # fmt: skip
    return Of(host=host, ranks={rank: rank for rank in range(ranks)}, peers=[list(range(ranks))], steps=1)


def usual(per_event_ns: float) -> float:
    return profiler_cost.usual_ns_per_event(host_graph(np.full(CALLS, per_event_ns)))


CASES.of("PROFILER_NS_PER_EVENT")(lambda at: profiler_cost.usual_ns_per_event(host_graph([1.0])) > at)
CASES.of("PROFILER_SHARE_OF_EVENT")(lambda at: usual(4000.0) > at * 4000.0)
CASES.of("LEAST_NS_PER_EVENT")(lambda at: usual(100.0) > at)
CASES.of("MOST_NS_SEEN")(lambda at: usual(5900.0) > at)
CASES.of("DENSE_NS")(lambda at: usual(at) == calibration.PROFILER_NS_PER_EVENT)
CASES.of("PARTS_OF_STEP")(lambda at: profiler_cost._enough_calls(host_graph(np.ones(at * calibration.FEWEST_CALLS))))
CASES.of("FEWEST_CALLS")(lambda at: profiler_cost._enough_calls(host_graph(np.ones(at * calibration.PARTS_OF_STEP))))


@CASES.of("PROFILER_NS_PER_CALL")
def kernel_only_recording(at: float) -> object:
    (trace,) = Job(ranks=1, step=(kernels(10),)).traces()
    what_if = build_what_if(build_timeline([msgspec.structs.replace(trace, operators_merged=True)]))
    assert what_if is not None
    return what_if.per_event_ns > at


def highest_overhead_tried(*, lightly: bool) -> float:
    """Return the highest overhead per event that is tried if the unprofiled step is half of the simulated step.

    `lightly` means a kernel-only trace.
    """
    tried: list[float] = []
    job: Any = Of(corrected_ms=10.0, per_event_ns=1.0, timeline=Of(traces=[Of(operators_merged=lightly)]))

    def at_cost(cost: float) -> Any:
        tried.append(cost)
        return job

    job.at_cost = at_cost
    fit_step_time(job, 5.0)
    return max(tried)


CASES.of("HIGHEST_NS_PER_EVENT")(lambda at: highest_overhead_tried(lightly=False) > at)
CASES.of("HIGHEST_NS_PER_CALL")(lambda at: highest_overhead_tried(lightly=True) > at)


@CASES.of("MOST_PROFILER_SHARE")
def mostly_profiler(at: float) -> object:
    graph = host_graph([1000.0])
    cost = profiler_cost.profiler_cost(graph, 1e6, profiler_cost.HostPace(np.ones(1), {0: 1.0}))
    return float(cost.busy[0]) > at * 1000


@CASES.of("SLOW_THROUGHOUT")
def slow_host(at: float) -> object:
    graph = host_graph(np.repeat([1000.0, 1000.0 * at], CALLS), ranks=2)
    return profiler_cost.host_pace(graph).by_process[1] > 1


@CASES.of("PROFILER_SCATTER")
def at_higher_cost(at: float) -> object:
    """Return whether the tested overhead, here the step before the edit, exceeds `limit`, the step after the edit."""
    limit = 1 + calibration.BEYOND_CHANCE * at

    def at_cost(cost: float) -> Any:
        return Of(corrected=cost, each_step_ms=lambda many: [many[0], limit])

    of = Of(what_if=Of(per_event_ns=1.0, at_cost=at_cost))
    return Significance._saving_at_higher_cost(cast("Any", of), (), lambda _, costs: costs) > 0


# Limits of host time.


def elsewhere(every_ns: int, *, is_cpu: bool = False) -> float:
    """Return the shortest pause that counts as untraced time for a thread that records an event every `every_ns`."""
    steps = HostSteps(start=np.array([0, 10**12]), number=np.arange(2), end=10**12, source="", thread=1)
    track: Any = Of(is_cpu=is_cpu, steps=steps, window_steps=np.array([0]), shift_ns=0)
    events: Any = Of(kind=np.full(50, EventKind.RUNTIME), thread=np.ones(50), start_ns=np.arange(50) * every_ns)
    return untraced_from_ns(track, events, [1])


CASES.of("EVENTS_ELSEWHERE")(lambda at: elsewhere(5_000) > at * 5_000)
CASES.of("ELSEWHERE_NS")(lambda at: elsewhere(100_000) > at)


@CASES.of("COMPUTES_NS")
def computing(at: float) -> object:
    """Return whether twenty operators of `at` ns each are found slow, on a host with a device."""
    job = Job(ranks=1, step=(kernels(1), *[python(at / NS_PER_MS)] * 20))
    return "slow operators" in {found.cause for found in diagnosis_of(job.traces())[0].values()}


@CASES.of("FEW_SLOW_CALLS", 4, 5)
def slow_calls(at: int) -> object:
    """Return whether few calls are slow: two of `at` equally slow operators take half of the time."""
    with mock.patch.object(places, "slow_operators", return_value={str(name): (2.0, 1.0) for name in range(at)}):
        return bool(places.few_slow_calls(Of(), ()))  # type: ignore[arg-type]


@CASES.of("TINY_KERNEL_US")
def tiny(at: float) -> object:
    case = case_of(Job(ranks=1, step=(kernels(at / 10, count=100, launch_us=30),)).traces())
    assert case.what_if is not None
    return LaunchBound()._describe(case, case.what_if, 1.0, 10.0).cause


@CASES.of("BESIDE")
def takes_turns(at: float) -> object:
    start = round(1000 * (1 - at))
    busy = {1: Intervals(np.array([0]), np.array([1000])), 2: Intervals(np.array([start]), np.array([start + 1000]))}
    threads = {thread: Of(busy=spans) for thread, spans in busy.items()}
    track: Any = Of(steps=Of(thread=1), threads=threads, ops=Of(launch_thread=np.array([2])))
    return host_chain._chain_threads(track, all_launchers=False)


def waited(pause: int) -> int:
    part: Any = Of(start=np.array([0.0]), end=np.array([100.0 + pause]))
    start, end = np.array([0, 100 + pause]), np.array([100, 200 + pause])
    return len(cpu_chain._waits(start, end, np.array([0]), part, EMPTY)[0])


def test_pause_of_minimum_length_waits_for_a_collective() -> None:
    """The timeline uses an equal limit for pauses within operators."""
    assert [waited(model_of_timeline.WAITED_NS + more) for more in (-1, 0)] == [0, 1]


@CASES.of("COPY_BEHIND_NS")
def behind_a_copy(at: float) -> object:
    """Return the kinds of a call that launches a copy, and of a synchronization that begins `at` ns after that call."""
    events: Any = Of(
        rows_of=lambda *_: np.array([0]), correlation=np.array([7, 7, 8]), thread=np.ones(3),
        direction=np.full(3, Direction.HOST_TO_DEVICE),
    )  # fmt: skip
    kinds = np.array([HostBlock.NOT, HostBlock.SYNC], np.uint8)
    times = np.array([0, 100 + round(at)]), np.array([100, 10**6])
    return host_chain._with_copies(events, np.array([1, 2]), kinds, *times).tolist()


def held_up(usual_ns: int, ns: float, queued: int = 600) -> object:
    """Return whether the last of ten calls waited for a full launch queue."""
    events: Any = Of(
        role=np.full(10, Role.LAUNCH), name=np.zeros(10, np.int64), rows_of=lambda *_: np.empty(0, np.intp),
        correlation=np.arange(10), direction=np.zeros(10, np.uint8), thread=np.ones(10, np.int64),
    )  # fmt: skip
    start, duration = 10**6 * np.arange(10), np.array([usual_ns] * 9 + [round(ns)])
    kinds = host_chain._block_kinds(
        events, np.arange(10), (start, start + duration), np.zeros(10, np.bool_), np.zeros(10), np.full(10, queued)
    )
    return bool(kinds[9] == HostBlock.QUEUE)


CASES.of("HELD_UP_NS")(lambda at: held_up(1000, at))
CASES.of("HELD_UP_FACTOR")(lambda at: held_up(10_000, 10_000 * at))
CASES.of("FULL_QUEUE_OPS")(lambda at: held_up(10_000, 50_000, round(at)))


# Limits of device time.


@CASES.of("QUEUED_NS")
def found_idle(at: float) -> object:
    """Return the latencies of two ops.

    The stream of the first op has been free for `at` ns. If this time exceeds QUEUED_NS, the first op's latency is the
    usual launch latency. The second op was queued, so it gets the usual launch latency.
    """
    host: Any = Of(time=np.array([100_000.0]))
    start, free = np.array([101_000.0, 201_000.0]), np.array([101_000.0 - at, 200_000.0])
    return build._latency_and_gap(host, np.zeros(2, np.int64), start, free, np.zeros(2, np.int64))[0].tolist()


@CASES.of("AT_ONCE_NS")
def followed_at_once(at: float) -> object:
    """Return the waits of ops, one of which starts `at` ns after the end of the other stream's op."""
    none = np.full(2, NONE, np.int64)
    start, end = np.array([0.0, 10**6 + at]), np.array([1e6, 2e6])
    histories = [streams.StreamHistory(s, end[s : s + 1], np.array([s]), np.array([s])) for s in (0, 1)]
    ops: Any = Of(
        start=start, end=end, launch_time=np.array([0, 1]), before_end=np.full(2, -np.inf), histories=histories,
        streams=[(0, 1), (1, 2)], wait_a=none.copy(), wait_b=none.copy(), waited_end=np.full(2, -np.inf),
    )  # fmt: skip
    streams.infer_waits(ops, np.empty(0, np.int64))
    return ops.wait_a.tolist()


@CASES.of("CLOCK_NS")
def ended_after(at: float) -> object:
    """Return the op that a call waits for by its CUDA event, if the call returns `at` ns before the op's end."""
    given = streams.StreamHistory(0, np.array([1000.0 + at]), np.array([0]), np.array([0]))
    awaited = streams.AwaitedOps(np.array([0]), np.array([5]), np.array([0]), np.array([0]))
    called, returned = np.array([500]), np.array([1000])
    kinds, parts = np.array([HostBlock.SYNC], np.uint8), [Of(histories=[given])]
    targets = host_chain._block_targets(parts, called, returned, called, kinds, np.array([5]), [awaited])  # type: ignore[arg-type]
    return targets[1].tolist()


@CASES.of("GAP_IN_GRAPH_NS")
def in_a_graph(at: float) -> object:
    what_if = what_if_of(Job(ranks=1, step=(kernels(1, count=100, launch_us=30),), steps=4))
    costs = replace(what_if.corrected, gap=np.full(len(what_if.corrected.gap), 2000.0))
    return float(counterfactuals.as_cuda_graph(what_if, costs).gap.min()) > at


@CASES.of("FEW_OPS")
def ends_a_step(at: int) -> object:
    graph: Any = Of(
        steps=1, streams=[(0, at)], device=Of(step=np.zeros(at, np.int64)), chains=[(0, 1)],
        host=Of(step=np.zeros(1, np.int64)),
    )  # fmt: skip
    return schedule._step_ends(graph)[1]


# Limits for kernels beside collectives.


def kernels_of(duration: list[float], beside: list[float]) -> Any:
    zero = np.zeros(len(duration), np.int64)
    columns = (np.array(duration), np.array(beside), np.zeros(len(duration)), np.zeros(len(duration)))
    return contention._Kernels(zero, zero, zero, *columns)


def group(median: float, spread: float, places: int) -> Any:
    return Of(
        median=lambda: np.array([median]), spread=lambda: np.array([spread]), distinct=lambda _: np.array([places])
    )  # fmt: skip


def repeated(*, calm: float = 0, disturbed: float = 0, slowed: float = 1, places: tuple[int, int] = (9, 9)) -> bool:
    """Return whether contended kernels are matched with contention-free kernels as repeated layers.

    `calm` and `disturbed` are the relative spreads of durations without and with contention, which lengthens kernels
    by the factor `slowed`. `places` are the numbers of the kernels' positions in the step, without and with contention.
    """
    groups = group(1.0, calm, places[0]), group(slowed, disturbed, places[1])
    return not np.isnan(contention._of_repeated_layers(*groups, np.zeros(1, np.int64)))[0]


CASES.of("CONTENTION_FREE")(lambda at: bool(kernels_of([1000.0], [1000 * at]).free[0]))
CASES.of("ALIKE_CONTENTION_FREE")(lambda at: repeated(calm=at))
CASES.of("ALIKE_DISTURBED")(lambda at: repeated(disturbed=at))
CASES.of("MOST_SLOWED")(lambda at: repeated(slowed=at))
CASES.of("CONTENTION_FREE_POSITIONS")(lambda at: repeated(places=(at, 1)))
CASES.of("CONTENDED_POSITIONS")(lambda at: repeated(places=(1, at)))


@CASES.of("MOST")
def known(at: float) -> object:
    """Return whether an unmatched kernel has no estimate if the share `at` of contended kernel time has matches."""
    time = np.array([50.0, np.nan])
    contention._estimate_unmatched(kernels_of([100.0, 100.0], [100 * at, 100 * (1 - at)]), time, np.arange(2))
    return bool(np.isnan(time[1]))


@CASES.of("TRANSFERRING")
def slowed_by_transfer(at: float) -> object:
    """Return whether the contention of two ranks exceeds `at` times that of a waiting collective.

    The ranks compute for 100 µs during an all-reduce, whose kernel occupies a tenth of the SMs while it waits.
    """
    traces = []
    for rank in range(2):
        builder = TraceBuilder(rank, world_size=2)
        for step in range(5):
            builder.step(step * 200).compute(10, 110).collective(5, 115, ranks=(0, 1))
        trace = builder.build()
        calls = tuple(msgspec.structs.replace(call, processor_share=0.1) for call in trace.collectives)
        traces.append(msgspec.structs.replace(trace, collectives=calls))
    timeline = build_timeline(traces)
    graph = build_graph(timeline)
    assert graph is not None
    return float(contention._kernels(graph, timeline).held.max()) > at * 0.1 * 100_000


# Limits in rules.


@CASES.of("MOSTLY_UNSEEN")
def unseen(at: float) -> object:
    """Return the type of the rule's result if the share `at` of communication is with ranks without traces."""
    device = Of(op_class=np.array([OpClass.COMMUNICATION]))
    what_if: Any = Of(graph=Of(device=device))
    case: Any = Of(
        timeline=Of(world_size=2, ranks_present=(0,)), step_ms=10.0,
        unseen_share=lambda: at, exposed_ms=lambda _: {0: 5.0},
    )  # fmt: skip
    return type(next(CommunicationBound().examine(case, what_if))).__name__


@CASES.of("OFTEN")
def synchronizes(at: int) -> object:
    """Return the ranks that synchronize more than their peers.

    One of three ranks synchronizes `at` times, and the other two once.
    """
    process = np.repeat(np.arange(3), [1, 1, at])
    waiting = np.zeros(len(process), np.int64)
    host = Of(process=process, block=np.full(len(process), HostBlock.SYNC), block_on=waiting)
    model = Of(communication=Of(blocks=waiting.astype(np.bool_)))
    graph = Of(host=host, ranks={rank: rank for rank in range(3)}, peers=[[0, 1, 2]])
    what_if: Any = Of(graph=graph, model=model)
    return components.synchronizing_more(what_if)


@CASES.of("ALSO_LATE")
def late(at: float) -> object:
    job = Job(ranks=4, step=DDP, extra={2: (fetch(40 * at),), 3: (fetch(40),)})
    return next(finding.ranks for finding in findings_of(job) if finding.code == "straggler")


@CASES.of("JITTER")
def another_each_step(at: float) -> object:
    """Return how ranks are equalized, if equal means save 10 ms and equal times in each step save 10 x `at` ms."""
    case = case_of(Job(ranks=2, step=DDP).traces())
    assert case.what_if is not None
    with (
        mock.patch.object(straggler, "_steady", return_value=True),
        mock.patch.object(WhatIf, "savings_ms", return_value=[10.0, 10 * at]),
    ):
        proposal: Any = next(straggler.Straggler().examine(case, case.what_if))
    return proposal.edit.keywords


# Limits of the machine.


def link(*rates: float, ceiling: float | None = None) -> list[tuple[str, ...]]:
    ceiling_fields = {"ceiling_gb_per_s": ceiling, "ceiling_source": "PCIe 5 x16"} if ceiling else {}
    copies = [host_copies(index, rate, **ceiling_fields) for index, rate in enumerate(rates)]
    facts = machine(*(gpu(index) for index in range(len(rates))), bandwidth=copies)
    return [(finding.severity, *finding.evidence["signs"]) for finding in DegradedLink().examine(facts)]


CASES.of("LINK_OF_CEILING")(lambda at: link(50 * at, ceiling=50.0))
CASES.of("LINK_SEVERE")(lambda at: link(50 * at, ceiling=50.0))
CASES.of("LINK_OF_SIBLINGS")(lambda at: link(25.0, 25.0, 25 * at))
CASES.of("NARROW_GB_PER_S")(link)


@CASES.of("PROVES_FULL_WIDTH")
def full_width(at: float) -> object:
    full = raw_gb_per_s(5, 16)
    assert full is not None
    facts = machine(gpu(0, pcie=loaded(5, 8, 5, 16)), bandwidth=(host_copies(0, full * at),))
    return len(DegradedLink().examine(facts))


def nvlink_unused(*, size: float = 1 << 30, busbw: float = 1.0) -> object:
    return unused_nvlink_gb_per_s(H200S, round(size), busbw) is None


CASES.of("OF_NVLINK")(lambda at: nvlink_unused(busbw=450 * at))
CASES.of("LARGE_TRANSFER_BYTES")(lambda at: nvlink_unused(size=at))
CASES.of("TINY_TRANSFER_BYTES")(
    lambda at: _tiny_bytes(case_of(Job(ranks=2, step=(kernels(10), all_reduce(10, megabytes=at / 1e6))).traces()))
)


@CASES.of("SAME_CLOCK")
def clocks(at: float) -> object:
    return len(ClockMismatch().examine(machine(gpu(0, sm_mhz=10_000), gpu(1, sm_mhz=round(10_000 * (1 - at))))))


@CASES.of("CONTEXT_BYTES")
def other_job(at: float) -> object:
    process = GpuProcess(pid=1, name="python", memory_bytes=round(at))
    return [finding.severity for finding in ForeignProcess().examine(machine(gpu(0, processes=(process,))))]


@CASES.of("PEER_SLOWER")
def direct(at: float) -> object:
    copies = peer_copies(0, 1, 10 * at, peer_access=True), peer_copies(0, 1, 10.0, peer_access=False)
    return len(PeerSlowerThanHost().examine(machine(gpu(0), gpu(1), bandwidth=copies)))


@CASES.of("ONE_LINK")
def shared(at: float) -> object:
    copies = host_copies(0, 10.0), host_copies(1, 10.0), together(5 * at, 5 * at)
    return len(SharedUplink().examine(machine(gpu(0), gpu(1), bandwidth=copies)))


@CASES.of("ONE_DIRECTION")
def both_ways(at: float) -> object:
    copies = (peer_copies(0, 1, 10.0, 10 * at, peer_access=False),)
    return len(SharedUplink().examine(machine(gpu(0), gpu(1), bandwidth=copies)))


@CASES.of("LONG_STAGE")
def long_stages(at: float) -> object:
    with mock.patch.object(uneven_stages, "relative_work", return_value=[1.0, at]):
        return len(list(uneven_stages.uneven_stages(Of(), Of(corrected=None))))  # type: ignore[arg-type]


@CASES.of("MORE_WORK")
def more_flops(at: float) -> object:
    ranks = [Of(rank=rank, flops=Of(by_precision={"fp32": flops})) for rank, flops in ((0, 1e6), (1, at * 1e6))]
    case: Any = Of(run=Of(ranks=ranks), tracks=[])
    what_if: Any = Of(graph=Of(peers=[[0, 1]], ranks={0: 0, 1: 1}))
    return more_work._sequences(case, what_if, (1,)) is None


def hot_expert(own: list[float], usual: list[float]) -> bool:
    """Return whether rank 1 is late because of its experts.

    `own` are the times of rank 1's two segments, and `usual` are the times of rank 0's two segments. An all-to-all runs
    beside the first segment.
    """
    beside = np.array([[True, False], [True, False]])
    what_if: Any = Of(graph=Of(ranks={0: 0, 1: 1}, steps=1), corrected=None)
    with (
        mock.patch.object(more_work, "work_by_segment", return_value=np.array([usual, own])),
        mock.patch.object(more_work, "beside_all_to_alls", return_value=beside),
    ):
        return more_work._experts(what_if, (1,)) is not None


@CASES.of("LONGER_SEGMENT")
def longer_segment(at: float) -> object:
    return hot_expert([100 * at, 100.0], [100.0, 100.0])


@CASES.of("MOST_OF_EXCESS")
def excess_in_experts(at: float) -> object:
    return hot_expert([100 + 100 * at, 200 - 100 * at], [100.0, 100.0])


@CASES.of("LEAST_ELSEWHERE")
def work_elsewhere(at: float) -> object:
    return hot_expert([1000 * (1 - at), 1000 * at], [500 * (1 - at), 1000 * at])


def bubble_finding(ms: float, idle_ms: float) -> list[Finding]:
    """Return the findings if the bubble takes `ms` of a step of 100 ms and a rank idles for at most `idle_ms`.

    With two stages and nine microbatches, the bubble takes a tenth of the step in theory."""
    schedule = PipelineSchedule(microbatches=9)
    bubble = pipeline_bubble.Bubble(
        stages=2, schedule=schedule, ms=ms, step_ms=100.0, longest_idle_ms=idle_ms, longest_ms=90
    )
    case: Any = Of(what_if=Of(now_ms=100.0), timeline=Of(ranks_present=(0, 1)))
    with mock.patch.object(pipeline_bubble, "bubble_of", return_value=bubble):
        return pipeline_bubble.PipelineBubble.findings(case, [])


@CASES.of("LEAST_BUBBLE_PERCENT")
def little_to_save(at: float) -> object:
    return len(bubble_finding(10.0, 2 * at))


@CASES.of("OPERATOR_FIXED_NS")
def short_operator(at: float) -> object:
    trace = TraceBuilder(unit_ns=1).steps(3, 10**6, lambda step: step.operator(1, 1 + round(at))).build()
    return pipeline_bubble._fixed_ms(case_of([trace]), 0)


@CASES.of("KERNEL_FIXED_NS")
def short_kernel(at: float) -> object:
    trace = TraceBuilder(unit_ns=1).steps(3, 10**6, lambda step: step.compute(1000, 1000 + round(at))).build()
    return pipeline_bubble._fixed_ms(case_of([trace]), 0)


@CASES.of("CLOSE_BUBBLE_PERCENT")
def bubble_as_in_theory(at: float) -> object:
    return bubble_finding(10.0 + at, 10.0)[0].confidence


@pytest.mark.parametrize("name", CASES.known)
def test_outcomes_just_below_and_just_above_a_constant_differ(name: str) -> None:
    assert CASES.differ(name)


def test_minimum_pause_equals_that_of_the_timeline() -> None:
    assert elsewhere(5_000, is_cpu=True) == model_of_timeline.PAUSE_NS < calibration.ELSEWHERE_NS < 100 * NS_PER_MS


def test_every_constant_has_a_source_and_cases() -> None:
    figures = figures_in(FOLDER / "calibration.py")
    assert set(CASES.known) == set(figures)
    assert {name: text for name, text in figures.items() if not any(kind in text for kind in KINDS)} == {}


def test_no_unlisted_constant_is_outside_of_calibration() -> None:
    """A new constant must be in calibration.py, with its source and cases."""
    elsewhere = {name for path in FOLDER.rglob("*.py") if path.name != "calibration.py" for name in numbers_in(path)}
    assert elsewhere <= set(ELSEWHERE)
