"""Provide the classes of a graph's ops, and scenarios in which ops and host work are shorter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.compute.kernel_class import KernelClass
from gpudiag.analysis.compute.work import CLASS_CODES, NO_CLASS, ComputeWork
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.simulation.graph import NONE, Index, Scenario, Times
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.intervals import Intervals, distinct, groups
from gpudiag.model.compute_rates import peak_memory_gb_per_s
from gpudiag.model.event import NO_NUMBER, EventKind
from gpudiag.model.timeline import UNKNOWN


class LaunchingThread(msgspec.Struct, frozen=True, kw_only=True):
    """A host thread that launches ops of a graph; times in ns on the common clock.

    Attributes:
        trace: index of the process's trace.
        ops: int64[k], the ops that the thread's operators launched.
        called, ended: int64[k], begin and end of the innermost operator around the launch of each of these ops.
        operators: the thread's nested operators, sorted by start; if two start together, the longer one is first.
    """

    trace: int
    ops: Index
    called: Index
    ended: Index
    operators: Intervals


@dataclass(frozen=True, eq=False)
class GraphKernels:
    """Columns of the m ops of a graph, as in `TrackKernels`.

    Attributes:
        kernel_class: uint8[m], index into `KERNEL_CLASSES`; `NO_CLASS` for copies and communication.
        operator: int64[m], row of the launching operator, or `UNKNOWN`.
        in_update: bool[m], launched in an optimizer's update.
        matrix: int8[m], 1 with tensor cores, 0 with fp32 units, `UNKNOWN` if the name does not say.
        fused: bool[m], does the work of several operations.
        batched: bool[m], multiplies many small matrices.
        across_rows: bool[m], reduces a tensor across its rows.
        depthwise: bool[m], a depthwise convolution on contiguous tensors.
        cudnn: bool[m], one of cuDNN's kernels.
        stream: int64[m], index into the graph's streams; ops of one stream are consecutive and in order.
    """

    what_if: WhatIf
    kernel_class: NDArray[np.uint8]
    operator: Index
    in_update: NDArray[np.bool_]
    matrix: NDArray[np.int8]
    fused: NDArray[np.bool_]
    batched: NDArray[np.bool_]
    across_rows: NDArray[np.bool_]
    depthwise: NDArray[np.bool_]
    cudnn: NDArray[np.bool_]
    stream: Index

    def of_class(self, *classes: KernelClass) -> NDArray[np.bool_]:
        """Return bool[m]: the ops of these classes."""
        wanted = np.zeros(NO_CLASS + 1, np.bool_)
        wanted[[CLASS_CODES[name] for name in classes]] = True
        return wanted[self.kernel_class]

    @cached_property
    def threads(self) -> tuple[LaunchingThread, ...]:
        """Return the launching threads of each device track."""
        threads = []
        track_of_op, timeline = self.what_if.graph.device.track, self.what_if.timeline
        for index, track in enumerate(timeline.tracks):
            ops = np.flatnonzero((self.operator != UNKNOWN) & (track_of_op == index))
            events, rows = timeline.traces[track.trace].events, self.operator[ops]
            operators = np.flatnonzero(events.kind == EventKind.OPERATOR)
            for thread, on_thread in groups(events.thread[rows]):
                nested = operators[events.thread[operators] == thread]
                threads.append(
                    LaunchingThread(
                        trace=track.trace,
                        ops=ops[on_thread],
                        called=events.start_ns[rows[on_thread]] + track.shift_ns,
                        ended=events.end_ns[rows[on_thread]] + track.shift_ns,
                        operators=Intervals(
                            events.start_ns[nested] + track.shift_ns, events.end_ns[nested] + track.shift_ns
                        ),
                    )
                )
        return tuple(threads)

    @property
    def duration(self) -> Times:
        """Return float64[m], ns: recorded durations."""
        device = self.what_if.graph.device
        return device.end - device.start

    def ms_per_step(self, values_ns: Times) -> float:
        """Return the sum of `values_ns`, float64[m], in ms per step, on the device track with the largest sum."""
        graph = self.what_if.graph
        return float(np.bincount(graph.device.track, weights=values_ns).max(initial=0.0)) / graph.steps / 1e6

    def per_step(self, chosen: NDArray[np.bool_]) -> float:
        """Return the number of chosen ops per step and track."""
        graph = self.what_if.graph
        return float(chosen.sum()) / graph.steps / max(len(distinct(graph.device.track)), 1)


@dataclass(frozen=True, eq=False)
class Shortening:
    """Shares (0 to 1, or more if kernels become longer) of durations, gaps and host work that remain without a cause.

    Attributes:
        remaining: float64[m], share of the op's duration that remains.
        gap: float64[m], share of the gap before the op that remains; None if all remains.
        host: float64[n], share of host work, except in slow calls, that remains before each node; None if all remains.
    """

    remaining: Times
    gap: Times | None = None
    host: Times | None = None

    def __call__(self, what_if: WhatIf, scenario: Scenario) -> Scenario:
        """Return the scenario without the cause."""
        shorter = replace(scenario, duration=scenario.duration * self.remaining)
        if self.gap is not None:
            shorter = replace(shorter, gap=np.where(scenario.gap > 0, scenario.gap * self.gap, scenario.gap))
        if self.host is not None:
            # A slow call is no launch, and other findings report it.
            slow = np.fmin(what_if.graph.host.slow, scenario.busy)
            kept = np.fmin(scenario.busy, what_if.model.communication.busy)
            shorter = replace(shorter, busy=np.maximum(slow + (scenario.busy - slow) * self.host, kept))
        return shorter


def graph_kernels(case: Case, what_if: WhatIf) -> GraphKernels | None:
    """Return the classes of the graph's ops; None if the kernels were not classified, or on CPUs."""
    if case.work is None or not case.tracks or case.tracks[0].is_cpu:
        return None
    device = what_if.graph.device
    columns = _columns(case.work, device.track, device.row)
    stream = np.zeros(len(device.row), np.int64)
    for index, (first, after) in enumerate(what_if.graph.streams):
        stream[first:after] = index
    return GraphKernels(what_if=what_if, stream=stream, **columns)


def _columns(work: ComputeWork, track: Index, row: Index) -> dict[str, NDArray[Any]]:
    """Return the columns of `TrackKernels` for ops given by track and event row; unclassified ops get placeholders."""
    columns: dict[str, NDArray[Any]] = {
        "kernel_class": np.full(len(row), NO_CLASS, np.uint8),
        "operator": np.full(len(row), UNKNOWN, np.int64),
        "matrix": np.full(len(row), UNKNOWN, np.int8),
    }
    for name in ("in_update", "fused", "batched", "across_rows", "depthwise", "cudnn"):
        columns[name] = np.zeros(len(row), np.bool_)
    for index, table in enumerate(work.tracks):
        ops = np.flatnonzero(track == index)
        if not len(ops) or not len(table.row):
            continue
        order = np.argsort(table.row, kind="stable")
        position = order[np.minimum(np.searchsorted(table.row[order], row[ops]), len(order) - 1)]
        known = table.row[position] == row[ops]
        for name, column in columns.items():
            column[ops[known]] = getattr(table, name)[position[known]]
    return columns


def share_at_memory_peak(case: Case, kernels: GraphKernels, chosen: NDArray[np.bool_]) -> Times:
    """Return float64[m]: share of its time that each chosen op would take at the peak rate of the device's memory.

    The bytes are those of the inputs and outputs of the op's operator, each counted once. The share is NaN if shapes or
    the peak are unknown.
    """
    share = np.full(len(chosen), np.nan)
    for index, track in enumerate(case.tracks):
        work, peak = case.timeline.traces[track.trace].operator_work, peak_memory_gb_per_s(track.device_name)
        if work is None or peak is None or not len(work.row):
            continue
        ops = np.flatnonzero(chosen & (kernels.what_if.graph.device.track == index))
        slot = np.minimum(np.searchsorted(work.row, kernels.operator[ops]), len(work.row) - 1)
        known = (work.row[slot] == kernels.operator[ops]) & (work.moved_bytes[slot] != NO_NUMBER)
        ops, slot = ops[known], slot[known]
        time_ns = np.bincount(slot, weights=kernels.duration[ops], minlength=len(work.row))
        # bytes / (GB/s) are ns; an operator's kernels move its bytes together, so that each gets the same share.
        share[ops] = work.moved_bytes[slot] / peak[0] / np.maximum(time_ns[slot], 1.0)
    return share


def launch_share(kernels: GraphKernels, chosen: NDArray[np.bool_], remaining: float) -> Times:
    """Return float64[n]: share of host work that remains if the launches of these ops shrink to `remaining`."""
    host, device = kernels.what_if.graph.host, kernels.what_if.graph.device
    share = np.ones(len(host.busy))
    launches = device.launch[chosen]
    share[launches[launches != NONE]] = remaining
    return share


def removed_ms(shortening: Shortening, kernels: GraphKernels) -> float:
    """Return the removed time of ops and of the gaps before them, in ms per step, the maximum over device tracks."""
    removed = kernels.duration * (1 - shortening.remaining)
    if shortening.gap is not None:
        removed += np.maximum(kernels.what_if.corrected.gap, 0.0) * (1 - shortening.gap)
    return kernels.ms_per_step(removed)


def removed_host_ms(shortening: Shortening, kernels: GraphKernels) -> float:
    """Return the removed host work, in ms per step, the maximum over processes."""
    if shortening.host is None:
        return 0.0
    graph = kernels.what_if.graph
    removed = np.maximum(kernels.what_if.corrected.busy - graph.host.slow, 0.0) * (1 - shortening.host)
    return float(np.bincount(graph.host.process, weights=removed).max(initial=0.0)) / graph.steps / 1e6
