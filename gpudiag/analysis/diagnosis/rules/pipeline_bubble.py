"""pipeline-bubble: a pipeline's schedule leaves stages idle even if all stages compute equally long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import msgspec
import numpy as np

from gpudiag.analysis.compute.launchers import operator_times
from gpudiag.analysis.diagnosis.calibration import (
    CLOSE_BUBBLE_PERCENT,
    KERNEL_FIXED_NS,
    LEAST_BUBBLE_PERCENT,
    OPERATOR_FIXED_NS,
)
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.even_step import balance_stages, work_of_processes
from gpudiag.analysis.diagnosis.rules.rule import severity_of
from gpudiag.analysis.diagnosis.simulation.counterfactuals import (
    equalize_ranks,
    without_input,
    without_transfer,
    without_untraced,
)
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.analysis.parallelism.rank_grid import find_grid
from gpudiag.analysis.parallelism.schedule import PipelineSchedule, schedule_of
from gpudiag.intervals import Intervals, union, within
from gpudiag.model.analysis import Finding
from gpudiag.model.event import Role
from gpudiag.model.parallelism import theoretical_bubble_percent
from gpudiag.model.timeline import OpClass
from gpudiag.units import milliseconds


class Bubble(msgspec.Struct, frozen=True, kw_only=True):
    """The idle time that a pipeline's schedule alone causes.

    Attributes:
        stages: number of pipeline stages.
        schedule: number of microbatches, and of chunks (parts of the model) per stage.
        ms: idle time of a stage in an even step, in which all ranks compute equally long and transfers take no time.
        step_ms: length of the even step.
        longest_idle_ms: idle time per step of the process that computes longest, if the imbalance is as recorded.
        longest_ms: compute of the same process per step.
        fixed_ms: time of the same process per step that does not shrink with the microbatch, including untraced time.
    """

    stages: int
    schedule: PipelineSchedule
    ms: float
    step_ms: float
    longest_idle_ms: float
    longest_ms: float
    fixed_ms: float = 0.0

    @property
    def percent(self) -> float:
        """Return the bubble's share of the even step."""
        return min(100 * self.ms / self.step_ms, 100.0) if self.step_ms else 0.0

    @property
    def saved_ms(self) -> float:
        """Return the savings, in ms per step, of twice as many microbatches of half the size.

        If a step has W ms of compute that shrinks with the microbatch and F ms that does not, p stages and m
        microbatches take (m + p - 1) (W + F) / m. With 2 m microbatches, F becomes 2 F.
        """
        shrinks = 1 - min(self.fixed_ms / self.longest_ms, 1.0) if self.longest_ms else 1.0
        return max(self.longest_idle_ms * shrinks / 2 - self.fixed_ms, 0.0)

    @property
    def theoretical_percent(self) -> float:
        """Return the percentage of the step that the schedule leaves idle in theory."""
        return theoretical_bubble_percent(self.stages, self.schedule.microbatches, self.schedule.chunks)


def bubble_of(case: Case, what_if: WhatIf) -> Bubble | None:
    """Return the bubble; None without a pipeline of known schedule."""
    stages, schedule = len(what_if.graph.peers), schedule_of(case.timeline, find_grid(case.timeline))
    if stages < 2 or schedule is None:
        return None
    passes = schedule.microbatches * schedule.chunks
    # Each scenario lacks more than the one before: waiting for data, untraced host time, transfers, imbalance.
    fetched = without_input(what_if, what_if.corrected)
    traced = without_untraced(what_if, fetched)
    untraced_ms = milliseconds(what_if.model.simulate(fetched).step_ns - what_if.model.simulate(traced).step_ns)
    uneven = without_transfer(what_if, traced)
    even = balance_stages(what_if, equalize_ranks(what_if, uneven))
    step_ms = milliseconds(what_if.model.simulate(even).step_ns)
    uneven_ms = milliseconds(what_if.model.simulate(uneven).step_ns)
    processes = list(what_if.graph.ranks)
    compute_ms = milliseconds(float(work_of_processes(what_if, even)[processes].mean()))
    work = work_of_processes(what_if, uneven)
    longest = max(processes, key=lambda process: float(work[process]))
    longest_ms = milliseconds(float(work[longest]))
    return Bubble(
        stages=stages,
        schedule=schedule,
        ms=max(step_ms - compute_ms, 0.0),
        step_ms=step_ms,
        longest_idle_ms=max(uneven_ms - longest_ms, 0.0),
        longest_ms=longest_ms,
        # With m microbatches, v chunks and p stages, a process runs m v of the m v + p - 1 passes on the critical path.
        fixed_ms=_fixed_ms(case, longest) + max(untraced_ms, 0.0) * passes / (passes + stages - 1),
    )


def _fixed_ms(case: Case, process: int) -> float:
    """Return the time per step of a process's kernels or operators that does not shrink with the microbatch, in ms.

    Each kernel, or each operator of a process without a device, contributes at most a fixed time. Operators that
    accumulate gradients contribute all of their time, because a gradient is as large as its parameter. The optimizer's
    update does not count, because a step has one update for any number of microbatches. `process` is the index of the
    process's trace; of several devices, the mean counts.
    """
    events = case.timeline.traces[process].events
    rows = np.flatnonzero(events.role == Role.OPTIMIZER)
    updates = union(Intervals(events.start_ns[rows], events.end_ns[rows]))
    accumulates = np.array([name.endswith("AccumulateGrad") for name in events.names], np.bool_)
    fixed_ns, steps = 0.0, 0
    for index, track in enumerate(case.tracks):
        if track.trace != process:
            continue
        steps += len(track.window_steps)
        if track.is_cpu:
            for rows, self_ns in operator_times(track, events):
                passes = ~within(updates, events.start_ns[rows])
                most_ns = np.where(accumulates[events.name[rows]], np.inf, OPERATOR_FIXED_NS)
                fixed_ns += float(np.minimum(self_ns, most_ns)[passes].sum())
        else:
            ops = track.ops
            passes = (ops.op_class == OpClass.COMPUTE) & (ops.start >= track.bounds[0]) & (ops.start < track.bounds[-1])
            if case.work is not None:
                passes &= ~case.work.tracks[index].in_update
            fixed_ns += float(np.minimum(ops.end - ops.start, KERNEL_FIXED_NS)[passes].sum())
    return milliseconds(fixed_ns / steps) if steps else 0.0


class PipelineBubble:
    """Stages of a pipeline wait for the first microbatch to arrive and for the last microbatch to return.

    The bubble is the step time minus a rank's compute in a simulated step in which all ranks compute equally long,
    transfers take no time and the host never waits for data. Theory predicts a share of (p - 1) / (v m + p - 1) of the
    step for p stages, m microbatches and v chunks per rank. Twice as many microbatches of half the size halve the idle
    time of the rank that computes longest, but need the fixed time of each kernel or operator twice.
    """

    code: ClassVar[str] = "pipeline-bubble"
    title: ClassVar[str] = "The pipeline's schedule leaves stages idle"

    @classmethod
    def findings(cls, case: Case, findings: Sequence[Finding]) -> list[Finding]:
        """Insert the finding about the bubble, if any, before the first finding that saves less or is `info`."""
        bubbles = list(cls._examine(case))
        if not bubbles:
            return list(findings)
        saved = bubbles[0].recoverable_ms_per_step or 0.0
        at = next(
            (
                index
                for index, finding in enumerate(findings)
                if finding.severity == "info" or (finding.recoverable_ms_per_step or 0.0) < saved
            ),
            len(findings),
        )
        return [*findings[:at], *bubbles, *findings[at:]]

    @classmethod
    def _examine(cls, case: Case) -> Iterator[Finding]:
        """Yield the finding about the bubble, if the job has a pipeline and more microbatches save enough."""
        what_if = case.what_if
        bubble = None if what_if is None else bubble_of(case, what_if)
        if what_if is None or bubble is None:
            return
        saved, step_ms = bubble.saved_ms, what_if.now_ms
        percent = min(100 * saved / step_ms, 100.0) if step_ms > 0 else 0.0
        if percent < LEAST_BUBBLE_PERCENT:
            return
        stages, schedule, count = bubble.stages, bubble.schedule, bubble.schedule.microbatches
        finer = PipelineSchedule(2 * count, schedule.chunks)
        yield Finding(
            code=cls.code,
            severity=severity_of(percent),
            ranks=case.timeline.ranks_present,
            recoverable_ms_per_step=saved,
            recoverable_percent=percent,
            confidence="high" if abs(bubble.percent - bubble.theoretical_percent) <= CLOSE_BUBBLE_PERCENT else "medium",
            title=(
                f"the pipeline's schedule leaves each stage idle for {bubble.ms:.1f} ms per step; twice as many "
                f"microbatches save about {saved:.1f} ms"
            ),
            evidence={
                "bubble_ms": bubble.ms,
                "bubble_percent": bubble.percent,
                "theoretical_percent": bubble.theoretical_percent,
                "stages": stages,
                "microbatches": count,
                "chunks": schedule.chunks,
                "fixed_ms": bubble.fixed_ms,
            },
            advice=(
                (
                    f"Train {2 * count} microbatches of half the size instead of {count}: the bubble becomes "
                    f"{_share(stages, finer)} instead of {_share(stages, schedule)} of the step."
                ),
                (
                    f"Interleave: {2 * schedule.chunks} parts of the model per stage have the same effect, for more "
                    "transfers."
                ),
                "Use fewer stages where the memory allows.",
            ),
        )


def _share(stages: int, schedule: PipelineSchedule) -> str:
    return f"{theoretical_bubble_percent(stages, schedule.microbatches, schedule.chunks):.0f} %"
