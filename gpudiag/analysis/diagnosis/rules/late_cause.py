"""Find why a rank is late: the part of its step (a `Component`) that explains the lost time, and its extra work."""

from __future__ import annotations

import statistics
from collections import defaultdict

import msgspec
import numpy as np

from gpudiag.analysis.diagnosis.calibration import MOST, OFTEN
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.places import few_slow_calls
from gpudiag.analysis.diagnosis.rules.host_stall import ELSEWHERE
from gpudiag.analysis.diagnosis.rules.rule import TF_DATA, Advice, notable, others, pytorch, tensorflow
from gpudiag.analysis.diagnosis.simulation.components import COMPONENTS, Component, equalized
from gpudiag.analysis.diagnosis.simulation.components import excess as excess_of
from gpudiag.analysis.diagnosis.simulation.graph import Scenario
from gpudiag.analysis.diagnosis.simulation.host_time import analysed_span
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.intervals import distinct, outermost, own_lengths
from gpudiag.model.event import EventKind, any_of
from gpudiag.model.timeline import PAUSE_NS, UNKNOWN, DeviceTrack
from gpudiag.units import milliseconds

#: Maximum number of operators or pauses in the evidence.
_MOST_NAMES = 5
#: Components with most of a host's work. If a host is slow in all its calls, its largest excess is in one of these
#: components.
_THROUGHOUT: tuple[Component, ...] = ("launch", "operators")
#: Causes that may hide frequent pauses of the host, each too short to count as untraced time.
_MAYBE_ELSEWHERE = frozenset({"launch", "unknown"})

CAUSE_ADVICE: dict[str, Advice] = {
    "input": (
        TF_DATA,
        (
            "Find out why the loader of {ranks} is slower: its files, disk or network mount, its CPU "
            "cores, its share of the data."
        ),
        pytorch(
            "Give it more workers and a deeper prefetch: DataLoader(num_workers=…, prefetch_factor=4, "
            "persistent_workers=True).",
        ),
        (
            "If its samples are larger than the others' (sequence lengths, images), distribute by size "
            "(bucketing) instead."
        ),
    ),
    "compute": (
        "Compare clocks, power and temperature of the GPU of {ranks} with its peers: `gpudiag topology`.",
        "Look for more work on {ranks}: batch size, sequence lengths, evaluation or logging that others do not do.",
    ),
    "clock": (
        "Let the GPU of {ranks} run at its peers' clocks: see the finding about it (clock-mismatch, throttled).",
        "Until then set the same clocks on all GPUs (nvidia-smi -lgc), or leave that GPU out, and compare.",
    ),
    "launch": (
        tensorflow("Give its process CPU cores of its own, near the GPU (numactl, taskset)."),
        pytorch(
            "Give {ranks} separate CPU cores, near the GPU (numactl, taskset, torchrun --numa-binding) "
            "and look for other processes there.",
        ),
        others("Give {ranks} separate CPU cores, near the GPU (numactl, taskset)."),
        "Look for extra Python in the loop of {ranks}: logging, checkpoints, metrics on one rank only.",
    ),
    "copy": (
        tensorflow("Check the PCIe link of its GPU: `gpudiag bandwidth`."),
        others("Check the PCIe link of the GPU of {ranks}: `gpudiag bandwidth`."),
        pytorch("Pin the host memory of {ranks} (pin_memory=True) and check its PCIe link: `gpudiag bandwidth`."),
    ),
    "stall": ELSEWHERE,
    "sync": (
        pytorch(
            "Find what only {ranks} reads back from the GPU: .item(), .cpu(), losses that are logged, checkpoints."
        ),
        tensorflow("Find what only {ranks} reads back from the GPU: .numpy(), losses that are logged, checkpoints."),
        others("Find what only {ranks} reads back from the GPU: losses that are logged, checkpoints."),
        "Do it every N steps, or read sums that were kept on the device.",
    ),
    "operators": ("Give these calls the same shapes on {ranks} as on the others, and the same ones each step.",),
    "unknown": ("Compare {ranks} with the others in the table of ranks: what takes longer there?",),
}

JITTER_ADVICE = (
    (
        "Look for what happens now and then on {whom}: garbage collection (gc.collect() every N steps on "
        "all ranks at once instead), samples of uneven size, logging, other processes on the same CPU cores."
    ),
    "Let hosts run ahead, so that they absorb it: fewer synchronizations per step, a deeper prefetch of the loader.",
)

CPU_ADVICE = (
    "Look for more work on {ranks}: batch size, sequence lengths, evaluation or logging that others do not do.",
    (
        "Look for other processes on the CPU cores of {ranks}, and give each rank its own (numactl, taskset, "
        "OMP_NUM_THREADS)."
    ),
)
OWN_WORK: Advice = (
    (
        "Look for what makes {ranks} call {names} more often than the others: logging, metrics, evaluation, weights "
        "that are averaged or saved."
    ),
    "Do it every N steps, or share it among the ranks.",
)


class MoreOperators(msgspec.Struct, frozen=True, kw_only=True):
    """Operators that take longer on stragglers than on other ranks, as means over steps and ranks.

    Attributes:
        own_ms: operator → excess self time in ms, largest first, for the few operators with the largest excess.
        calls: the same operators → excess calls.
        own_work: whether stragglers do extra work: most of the excess is in operators that they call more often.
    """

    own_ms: dict[str, float]
    calls: dict[str, float]
    own_work: bool

    def words(self) -> str:
        """Return a part of a title: the first operator if it has most of the excess, else the first two."""
        first, *others = self.own_ms
        alone = self.own_ms[first] > MOST * sum(self.own_ms.values())
        return f"in {first}" if alone or not others else f"in {first}, {others[0]}{' and others' if others[1:] else ''}"


def more_operators(case: Case, late: tuple[int, ...]) -> MoreOperators | None:
    """Return the operators that take longer on these ranks; None without such operators or without other ranks."""
    measured = [(track.rank in late, *_time_and_calls(case, track)) for track in case.tracks]
    if len({is_late for is_late, *_ in measured}) < 2:
        return None
    more_ms = _excess([(is_late, ms) for is_late, ms, _ in measured])
    more_calls = _excess([(is_late, calls) for is_late, _, calls in measured])
    longer = {name: ms for name, ms in sorted(more_ms.items(), key=lambda item: -item[1]) if ms > 0}
    # Operators with at least one additional call in most steps.
    called = sum(ms for name, ms in longer.items() if more_calls[name] >= MOST)
    own_work = called > MOST * sum(longer.values())
    # Extra work consists of additional calls, so that operators without additional calls are left out.
    first = [name for name in longer if not own_work or more_calls[name] >= MOST][:_MOST_NAMES]
    if not first:
        return None
    return MoreOperators(
        own_ms={name: longer[name] for name in first},
        calls={name: more_calls[name] for name in first},
        own_work=own_work,
    )


def _excess(measured: list[tuple[bool, defaultdict[str, float]]]) -> dict[str, float]:
    """Return operator → (mean amount over late ranks) - (mean amount over other ranks), for operators of late ranks.

    `measured` has for each track whether its rank is late, and operator → amount, which is 0 if missing.
    """
    ranks = [amounts for is_late, amounts in measured if is_late]
    peers = [amounts for is_late, amounts in measured if not is_late]
    return {
        name: sum(rank[name] for rank in ranks) / len(ranks) - sum(peer[name] for peer in peers) / len(peers)
        for name in {name: None for rank in ranks for name in rank}
    }


class OwnPauses(msgspec.Struct, frozen=True, kw_only=True):
    """Pauses of stragglers between two calls that other ranks seldom make in succession.

    A thread that lost its core also pauses between calls that other ranks make. A thread that saves or logs pauses
    between additional calls.

    Attributes:
        ms: description of the calls before and after the pause → mean ms per step and straggler, longest first.
    """

    ms: dict[str, float]

    @property
    def total_ms(self) -> float:
        """Return the sum of all pauses, in ms per step and straggler."""
        return sum(self.ms.values())

    def words(self) -> str:
        """Return the description of the longest pause if it has most of the time, else ""."""
        first = next(iter(self.ms), "")
        return first if first and self.ms[first] > MOST * self.total_ms else ""

    def first(self) -> dict[str, float]:
        """Return the few longest pauses."""
        return dict(list(self.ms.items())[:_MOST_NAMES])


def own_pauses(case: Case, late: tuple[int, ...]) -> OwnPauses:
    """Return these ranks' pauses between calls that other ranks seldom make in succession; none without other ranks."""
    ranks = [_between_calls(case, track) for track in case.tracks if track.rank in late]
    peers = [_between_calls(case, track) for track in case.tracks if track.rank not in late]
    ms: dict[str, float] = defaultdict(float)
    for rank in ranks if peers else ():
        for pair, (times, paused_ms) in rank.items():
            usual = sum(peer.get(pair, (0.0, 0.0))[0] for peer in peers) / len(peers)
            if paused_ms and times >= OFTEN * usual:
                before, after = pair
                words = f"between calls of {before}" if before == after else f"after {before} and before {after}"
                ms[words] += paused_ms / len(ranks)
    return OwnPauses(ms=dict(sorted(ms.items(), key=lambda item: -item[1])))


def _between_calls(case: Case, track: DeviceTrack) -> dict[tuple[str, str], tuple[float, float]]:
    """Return names of two successive calls → (number of occurrences, ms of pauses) per analysed step.

    Only outermost calls of the training and launching threads count.
    """
    events, (begin, end) = case.timeline.traces[track.trace].events, analysed_span(track)
    rows = events.rows_of(EventKind.OPERATOR, EventKind.RUNTIME)
    start = events.start_ns[rows] + track.shift_ns
    rows = rows[any_of(events.thread[rows], *_threads(track)) & (start >= begin) & (start < end)]
    # Of calls that start together, `outermost` keeps the first, which must be the longest.
    rows = rows[np.lexsort((-events.end_ns[rows], events.start_ns[rows]))]
    rows = rows[outermost(events.start_ns[rows], events.end_ns[rows])]
    pause = events.start_ns[rows[1:]] - events.end_ns[rows[:-1]]
    pause = np.where(pause > PAUSE_NS, pause, 0)  # shorter time is Python between calls
    pairs = np.stack([events.name[rows[:-1]], events.name[rows[1:]]], axis=1)
    named, index_of_name, times = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
    paused = np.bincount(index_of_name.reshape(-1), weights=pause, minlength=len(named))
    steps = len(track.window_steps)
    return {
        (events.names[before], events.names[after]): (count / steps, milliseconds(ns) / steps)
        for (before, after), count, ns in zip(named.tolist(), times.tolist(), paused.tolist(), strict=True)
    }


def _threads(track: DeviceTrack) -> set[int]:
    return {track.steps.thread, *distinct(track.ops.launch_thread).tolist()} - {UNKNOWN}


def _time_and_calls(case: Case, track: DeviceTrack) -> tuple[defaultdict[str, float], defaultdict[str, float]]:
    """Return (operator → self time in ms, operator → calls) per analysed step of the training and launching threads."""
    events, (begin, end) = case.timeline.traces[track.trace].events, analysed_span(track)
    own_ms: defaultdict[str, float] = defaultdict(float)
    calls: defaultdict[str, float] = defaultdict(float)
    for thread in _threads(track):
        rows = events.rows_of(EventKind.OPERATOR)
        rows = rows[events.thread[rows] == thread]
        own = own_lengths(events.start_ns[rows], events.end_ns[rows])
        start = events.start_ns[rows] + track.shift_ns
        inside = (start >= begin) & (start < end)
        names, index_of_name, count = np.unique(events.name[rows[inside]], return_inverse=True, return_counts=True)
        total = np.bincount(index_of_name, weights=own[inside], minlength=len(names))
        for index, ns, times in zip(names.tolist(), total.tolist(), count.tolist(), strict=True):
            own_ms[events.names[index]] += milliseconds(ns) / len(track.window_steps)
            calls[events.names[index]] += times / len(track.window_steps)
    return own_ms, calls


def cause_of(case: Case, what_if: WhatIf, gain: float, jitter: bool) -> tuple[str, dict[str, float]]:
    """Find the part of the step that explains the savings of equalizing the ranks.

    A part explains the savings if equalizing it alone saves most of them, or if equalizing all other parts saves
    little. The second condition is needed if another rank sets the pace once the part is equalized. A host that lost
    its core launches slowly, has slow calls and pauses. If no part explains the savings, the cause is therefore
    `launch` if equalizing launching, calls and pauses together saves most. Slow calls count as `launch` too, unless
    a few operators have most of their time.

    A part in which ranks hardly differ explains nothing, although equalizing it may save time, because kernels take
    longer beside collectives that wait for a late rank. If ranks differ in only one part, that part explains all
    savings. If they hardly differ in any part, the excess is spread over parts, and every part is examined.

    Args:
        case, what_if: the job and its simulation.
        gain: savings of equalizing the ranks in all parts, in ms per step.
        jitter: whether late ranks are late in some steps only. Ranks are then equalized in each step, else on average.

    Returns:
        (the part that explains the savings, or "unknown"; part → savings in ms per step if it alone is equalized).
    """

    def equalize(*parts: Component) -> Scenario:
        return equalized(what_if, what_if.corrected, parts, each_step=jitter)

    alone: dict[Component, float] = dict(
        zip(COMPONENTS, what_if.savings_ms([equalize(part) for part in COMPONENTS]), strict=True)
    )
    differ = [part for part in COMPONENTS if _differ(what_if, part, jitter)] or list(COMPONENTS)
    best = max(differ, key=lambda part: alone[part])
    explains = alone[best] >= MOST * gain or len(differ) == 1
    if not explains:
        others = what_if.saving_ms(equalize(*(part for part in COMPONENTS if part != best)))
        explains = gain - others >= MOST * gain
    if not explains and best in _THROUGHOUT:
        explains = what_if.saving_ms(equalize(*_THROUGHOUT, "stall")) >= MOST * gain
        best = "launch"
    if best == "operators" and not few_slow_calls(case, tuple(what_if.graph.ranks.values())):
        best = "launch"  # slow calls of many names show that the host sometimes loses its core
    return (best if explains else "unknown"), {str(part): ms for part, ms in alone.items()}


def _differ(what_if: WhatIf, part: Component, each_step: bool) -> bool:
    """Return whether a rank notably exceeds its peers in this part, by its mean over steps.

    With `each_step`, each step counts with the rank that exceeds its peers most in this step.
    """
    excess = excess_of(what_if, part)
    by_step = zip(*excess.by_step.values(), strict=True)
    most = statistics.fmean(max(ranks) for ranks in by_step) if each_step else max(excess.by_rank.values())
    return notable(milliseconds(most), what_if.corrected_ms)


def stall_by_own_pauses(case: Case, late: tuple[int, ...], cause: str, gain: float) -> tuple[str, OwnPauses]:
    """Return ("stall", pauses) if `own_pauses` explain most of the savings, else (`cause` unchanged, no pauses).

    Unlike for other stalls, the length of a single pause does not matter, because other ranks do not make these calls.
    `gain` is the savings to explain, in ms per step; if it is 0, pauses are not examined.
    """
    if gain and cause in _MAYBE_ELSEWHERE:
        pauses = own_pauses(case, late)
        if pauses.total_ms >= MOST * gain:
            return "stall", pauses
    return cause, OwnPauses(ms={})
