"""Find the lines of the user's source that cause host time, idle devices and stragglers of a case."""

from __future__ import annotations

from collections.abc import Set
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.simulation.host_time import untraced_time
from gpudiag.analysis.lines.choose import location, main_line, other_work, path_of, shortened
from gpudiag.analysis.lines.on_trace import LinesOnTrace, lines_on_trace
from gpudiag.analysis.lines.spans import LineSpans, line_spans
from gpudiag.analysis.lines.table import line_table
from gpudiag.analysis.lines.times import ProcessTimes
from gpudiag.analysis.lines.walk import ROOT
from gpudiag.intervals import Intervals, among, complement, intersect, union
from gpudiag.model.event import Role
from gpudiag.model.source_lines import SourceLine, SourceLocation
from gpudiag.model.source_lines.log import LineLogs
from gpudiag.model.timeline import DeviceTrack, Timeline
from gpudiag.units import NS_PER_MS

if TYPE_CHECKING:
    from gpudiag.analysis.diagnosis.simulation.graph import HostNodes

#: Maximum number of recompiled functions in the evidence.
_MOST_FRAMES = 5
#: Only the longest host nodes are divided among lines: at most this number of nodes, up to this share of all time.
_MOST_NODES, _COVERED = 3000, 0.98

Times = NDArray[np.float64]


class LineInSteps(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the loop that training itself does not need (see one_line.py), with its times on all ranks.

    Attributes:
        source: the line.
        ms: time in the line and the lines that it calls, per unprofiled step; the median over ranks.
        longest_ms: the same time on the slowest rank of each unprofiled step; the mean over these steps.
        times: intervals of the line and the lines that it calls, by index of the trace.
        untraced: the part of `times` without operators and calls.
        begin_ns: when the host begins the first analysed step, on the common clock, by index of the trace.
    """

    source: SourceLocation
    ms: float
    longest_ms: float
    times: dict[int, Intervals]
    untraced: dict[int, Intervals]
    begin_ns: dict[int, int]


class CaseLines:
    """The lines of every process of a job.

    Args:
        timeline: the job's device tracks.
        logs: line events of its processes.
        step_ms: mean unprofiled step time by rank.

    Attributes:
        ranks: lines of each process, by index of its trace.
        workers: lines of the DataLoader workers of a process, by index of its trace.
    """

    def __init__(self, timeline: Timeline, logs: LineLogs, step_ms: dict[int, float]) -> None:
        self._timeline = timeline
        # The first track of each process.
        self._tracks: dict[int, DeviceTrack] = {track.trace: track for track in reversed(timeline.tracks)}
        self.ranks: dict[int, ProcessTimes] = {}
        self.workers: dict[int, list[ProcessTimes]] = {}
        for trace, track in self._tracks.items():
            log = logs.ranks.get(track.rank)
            if log is not None and log.sections:  # a log without sections has no lines
                self.ranks[trace] = ProcessTimes(log, step_ms.get(track.rank))
                self.workers[trace] = [ProcessTimes(worker) for worker in logs.workers_of(track.rank)]

    @cached_property
    def placed(self) -> dict[int, LinesOnTrace]:
        """Return index of the trace → its lines on the common clock, for traces whose steps match the log's steps."""
        placed = {}
        for trace, process in self.ranks.items():
            lines = lines_on_trace(process, self._tracks[trace].steps.start)
            if lines is not None:
                placed[trace] = lines
        return placed

    @cached_property
    def spans(self) -> dict[int, LineSpans]:
        """Return index of the trace → its lines as nested spans."""
        return {trace: line_spans(self.ranks[trace], lines) for trace, lines in self.placed.items()}

    def table(self) -> tuple[SourceLine, ...]:
        """Return the lines of all training processes, each followed by the lines of its slowest DataLoader worker."""
        rows: list[SourceLine] = []
        for trace, process in sorted(self.ranks.items(), key=lambda item: self._tracks[item[0]].rank):
            rank = self._tracks[trace].rank
            rows.extend(line_table(process, rank, "training", self._idle_ns(trace)))
            workers = [worker for worker in self.workers[trace] if worker.steps]
            if workers:
                slowest = max(workers, key=lambda worker: float(worker.total_ns[0].mean()))
                rows.extend(line_table(slowest, rank, "worker"))
        return tuple(rows)

    def of_nodes(
        self,
        host: HostNodes,
        untraced: Times,
        traced: Times,
        ranks: set[int],
        others: Set[SourceLocation] = frozenset(),
    ) -> SourceLocation | None:
        """Return the line in which these ranks spend most of the given host time; None if no line has most of it.

        Args:
            host: the host nodes.
            untraced: float64[n], ns of untraced host time before each node.
            traced: float64[n], ns of other host time before each node.
            ranks: the ranks to examine; the rank with the most time decides.
            others: lines to exclude.
        """
        best: tuple[float, SourceLocation | None] = (0.0, None)
        for trace, lines in self.placed.items():
            here = host.process == trace
            total = float(untraced[here].sum() + traced[here].sum())
            if self._tracks[trace].rank not in ranks or total <= best[0]:
                continue
            process = self.ranks[trace]
            gone = self._nodes_of(process, others)
            amounts = self._amounts_by_line(lines.without(gone), process, host, np.where(here, traced, 0.0))
            if untraced[here].any():
                stretches = self._untraced(trace).without(gone)
                amounts += self._amounts_by_line(stretches, process, host, np.where(here, untraced, 0.0))
            node = main_line(process, amounts)
            best = total, None if node is None else location(process, node)
        return best[1]

    def tracing_ns(self, host: HostNodes) -> Times:
        """Return float64[n], ns of `sys.settrace`, which records lines on Python 3.11, before each host node."""
        cost = np.zeros(len(host.time))
        for trace, lines in self.placed.items():
            nodes = np.flatnonzero(host.process == trace)
            # The cost from the first line until each node.
            until = lines.tracing_until(np.append(float(self._tracks[trace].bounds[0]), host.time[nodes]))
            cost[nodes] = np.maximum(np.diff(until), 0.0)
        return cost

    def removable(self, least_share: float) -> list[LineInSteps]:
        """Return the lines outside of training that take this share of the step or more, longest first.

        A line that few ranks run is excluded, because the straggler rule reports it. The result is empty unless the
        lines of all processes are known.
        """
        processes = {trace: self.ranks[trace] for trace in self.placed if self.ranks[trace].steps}
        if not processes or len(processes) < len(self._tracks):
            return []
        tables = {trace: _by_path(process) for trace, process in processes.items()}
        first = min(processes)  # its lines are examined, and found in the other processes by their paths
        process, least_ns = processes[first], least_share * float(processes[first].total_ns[ROOT].mean())
        lines = []
        for top in other_work(process, least_ns):  # of a line of the loop, the called line with most time is reported
            below = process.tree.subtree(top)
            amounts = np.zeros(len(process.tree.parent))
            amounts[below] = process.self_ns[below].mean(axis=1)
            node = main_line(process, amounts)
            if node is None:
                continue
            path = path_of(process, top)
            nodes = {trace: tables[trace][path][0] for trace in processes if path in tables[trace]}
            total = [float(processes[trace].total_ns[other].mean()) for trace, other in nodes.items()]
            total += [0.0] * (len(processes) - len(nodes))
            if float(np.median(total)) >= least_ns:
                lines.append(self._in_steps(location(process, node), nodes, float(np.median(total)) / NS_PER_MS))
        return sorted(lines, key=lambda line: -line.ms)

    def _in_steps(self, source: SourceLocation, nodes: dict[int, int], ms: float) -> LineInSteps:
        """Return a line with its times on all ranks; `nodes` has the line's node by index of the trace."""
        times, untraced = {}, {}
        for trace, node in nodes.items():
            below = np.array(self.ranks[trace].tree.subtree(node), np.int64)
            times[trace] = self.placed[trace].of(below)
            untraced[trace] = self._untraced(trace).of(below)
        begin = {trace: _first_step_ns(self._tracks[trace]) for trace in nodes}
        # All ranks begin and end unprofiled steps together, so steps of equal index correspond.
        by_step = [self.ranks[trace].total_ns[node] for trace, node in nodes.items()]
        steps = min(len(ns) for ns in by_step)
        longest_ms = float(np.max([ns[:steps] for ns in by_step], axis=0).mean()) / NS_PER_MS
        return LineInSteps(source=source, ms=ms, longest_ms=longest_ms, times=times, untraced=untraced, begin_ns=begin)

    def _untraced(self, trace: int) -> LinesOnTrace:
        """Return the stretches of lines in which the training thread runs no operator and no call.

        Time outside of step marks is excluded, because gpudiag itself runs there, although the step's last line is
        still the current line.
        """
        track, events = self._tracks[trace], self._timeline.traces[trace].events
        marks = np.flatnonzero((events.role == Role.STEP_MARK) & (events.thread == track.steps.thread))
        marks = marks[among(events.start_ns[marks] + track.shift_ns, track.steps.start)]
        steps = union(Intervals(events.start_ns[marks] + track.shift_ns, events.end_ns[marks] + track.shift_ns))
        untraced = union(untraced_time(track, events), track.before_first_op)
        return self.placed[trace].inside(intersect(untraced, steps))

    def of_input(self, ranks: set[int]) -> SourceLocation | None:
        """Return the line that takes most of the time to make batches, on the first of these ranks with one, or None.

        DataLoader workers are examined before the training thread.
        """
        for trace, process in self.ranks.items():
            if self._tracks[trace].rank not in ranks:
                continue
            for worker in self.workers[trace]:
                slowest = main_line(worker, _within_lines(worker)) if worker.steps else None
                if slowest is not None:
                    return location(worker, slowest)
            amounts = process.self_ns.mean(axis=1) if process.steps else np.zeros(len(process.tree.parent))
            fetching = {node for node in range(len(amounts)) if process.tree.kind(node) == "input"}
            inside = np.array([bool(fetching.intersection(process.tree.path(node))) for node in range(len(amounts))])
            fetch = main_line(process, np.where(inside, amounts, 0.0))
            if fetch is not None:
                return location(process, fetch)
        return None

    def recompiled(self) -> list[dict[str, Any]]:
        """Return functions that are recompiled in the steps of the process with most compilation, slowest first."""
        processes = [process for process in self.ranks.values() if process.alone is not None]
        longest = max(processes, key=lambda process: sum(row.ms for row in process.log.compilations), default=None)
        if longest is None:
            return []
        # `step_ns` has the bounds of the steps, so that it has one time more than there are steps.
        steps = max(1, len(longest.alone.step_ns if longest.alone is not None else ()) - 1)
        return [
            {
                "frame": f"{shortened(row.file, longest.log.directory)}:{row.line} {row.function}",
                "per_step": row.times / steps,
                "ms_per_step": row.ms / steps,
                "failed_guard": row.reason.partition(": ")[2] or row.reason,  # without the id
            }
            for row in sorted(longest.log.compilations, key=lambda row: -row.ms)[:_MOST_FRAMES]
        ]

    def of_straggler(self, rank: int) -> SourceLocation | None:
        """Return the line that explains most of a rank's excess over the median of the other ranks; None if unknown."""
        processes = {self._tracks[trace].rank: process for trace, process in self.ranks.items()}
        process = processes.pop(rank, None)
        if process is None or not processes or not process.steps:
            return None
        others = [_by_path(other) for other in processes.values() if other.steps]
        excess = np.zeros(len(process.tree.parent))
        for path, (node, ns) in _by_path(process).items():
            usual = float(np.median([other[path][1] if path in other else 0.0 for other in others])) if others else 0.0
            excess[node] = max(0.0, ns - usual)
        line = main_line(process, excess)
        return None if line is None else location(process, line)

    @staticmethod
    def _nodes_of(process: ProcessTimes, lines: Set[SourceLocation]) -> NDArray[np.int64]:
        """Return the nodes of these lines and of the lines that they call."""
        wanted = {(line.file, line.line) for line in lines}
        nodes: set[int] = set()
        for node in range(1, len(process.tree.parent)) if wanted else ():  # parents precede the lines that they call
            where = location(process, node)
            if process.tree.parent[node] in nodes or (where.file, where.line) in wanted:
                nodes.add(node)
        return np.array(sorted(nodes), np.int64)

    def _amounts_by_line(self, lines: LinesOnTrace, process: ProcessTimes, host: HostNodes, amounts: Times) -> Times:
        """Return float64[lines], ns: the amount of each host node, divided among the lines that run before it."""
        by_line = np.zeros(len(process.tree.parent))
        rows = np.argsort(-amounts)[:_MOST_NODES]
        running = np.cumsum(amounts[rows])
        rows = rows[: int(np.searchsorted(running, _COVERED * amounts.sum())) + 1]
        for row in rows.tolist():
            if amounts[row] <= 0:
                continue
            begin = host.time[row - 1] if row and host.process[row - 1] == host.process[row] else host.time[row]
            begin = min(begin, host.time[row] - amounts[row])  # the span is at least as long as the amount
            times = lines.by_node(begin, host.time[row])
            whole = sum(times.values())
            for node, ns in times.items():
                by_line[node] += amounts[row] * ns / whole
        return by_line

    def _idle_ns(self, trace: int) -> Times | None:
        """Return float64[lines], ns per step in which the line itself runs while no device works; None if unknown."""
        lines = self.placed.get(trace)
        tracks = [track for track in self._timeline.tracks if track.trace == trace and len(track.window_steps)]
        if lines is None or not tracks:
            return None
        begin, end = int(tracks[0].bounds[0]), int(tracks[0].bounds[-1])
        busy = union(*(Intervals(track.ops.start, track.ops.end) for track in tracks))
        idle = intersect(complement(busy, begin, end), Intervals(np.array([begin]), np.array([end])))
        steps = len(tracks[0].window_steps)
        per_step: Times = lines.time_inside(idle, len(self.ranks[trace].tree.parent)) / steps
        return per_step


def _first_step_ns(track: DeviceTrack) -> int:
    """Return when the host began the first analysed step, on the common clock; a device begins the step later."""
    return int(track.steps.start[track.steps.number == track.window_steps[0]][0])


def _within_lines(process: ProcessTimes) -> Times:
    """Return float64[lines], mean ns per step in each line itself; 0 for time outside of all lines."""
    amounts: Times = process.self_ns.mean(axis=1)
    amounts[ROOT] = 0.0
    return amounts


def _by_path(process: ProcessTimes) -> dict[tuple[tuple[str, int], ...], tuple[int, float]]:
    """Return path of (file, line) → (node, mean ns per step in the node's line itself)."""
    mean = process.self_ns.mean(axis=1)
    return {path_of(process, node): (node, float(mean[node])) for node in range(1, len(process.tree.parent))}
