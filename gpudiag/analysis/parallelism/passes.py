"""Cut a step of each stage into the forward and backward passes of its microbatches."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from gpudiag.analysis.parallelism.backward import backward_passes
from gpudiag.analysis.parallelism.rank_grid import RankGrid
from gpudiag.analysis.parallelism.schedule import NamedPass, PipelineSchedule, named_passes
from gpudiag.intervals import EMPTY, Intervals, distinct, intersect, subtract
from gpudiag.model.event import POINT_TO_POINT
from gpudiag.model.parallelism import Pass, PassOfStage
from gpudiag.model.timeline import Attribution, DeviceTrack, OpClass, Timeline, TrackAttribution
from gpudiag.units import milliseconds


class _Part(NamedTuple):
    """A stretch of compute from `start` to `stop`, in ns."""

    direction: Pass
    start: int
    stop: int


#: Compute between two messages is no pass if it is shorter than this share of the longest such stretch.
_SHORT = 0.1


def passes_of_step(
    timeline: Timeline, attribution: Attribution, grid: RankGrid, schedule: PipelineSchedule
) -> tuple[PassOfStage, ...]:
    """Return the passes of the step of median length (on the first rank shown), on one rank of each stage.

    If the trace does not name passes, each rank's compute is cut into passes at its messages. Compute after the passes
    of all microbatches, such as the update, is left out. Times count from the start of the first pass.
    """
    shown: dict[int, tuple[DeviceTrack, TrackAttribution]] = {}
    for track, attributed in zip(timeline.tracks, attribution.tracks, strict=True):
        if len(attributed.step_ns):
            shown.setdefault(grid.stage(track.rank), (track, attributed))
    if not shown:
        return ()
    lengths = next(iter(shown.values()))[1].step_ns
    step = int(np.argsort(lengths, kind="stable")[len(lengths) // 2])
    passes: list[PassOfStage] = []
    for stage, (track, attributed) in sorted(shown.items()):
        window = track.bounds[step : step + 2]
        inside = Intervals(window[:1], window[1:]) if len(window) > 1 else EMPTY
        named = _named(timeline, track, attributed, inside, stage)
        compute = intersect(attributed.parts["compute"], inside)
        if named or not len(compute):
            passes += named
            continue
        passes += [
            each
            for each in _passes(timeline, track, compute, stage)
            if each.microbatch < schedule.microbatches * schedule.chunks
        ]
    first = min((shown_pass.start_ms for shown_pass in passes), default=0.0)
    replace = msgspec.structs.replace
    return tuple(
        replace(shown_pass, start_ms=shown_pass.start_ms - first, end_ms=shown_pass.end_ms - first)
        for shown_pass in passes
    )


def _named(
    timeline: Timeline, track: DeviceTrack, attributed: TrackAttribution, inside: Intervals, stage: int
) -> list[PassOfStage]:
    """Return the passes that the trace names, each from its first to its last compute.

    Passes outside of `inside` (the window of one step, or empty) and passes without compute are left out. The index
    of a pass's chunk is that of its stage among the stages that this rank names.
    """
    if not len(inside):
        return []
    named = named_passes(timeline, track)
    chunks = sorted({each.stage for each in named})
    begin, end = int(inside.start[0]), int(inside.end[0])
    passes = []
    for each in named:
        if not begin <= each.start < end:
            continue
        spent = _compute_of(track, attributed, each)
        if len(spent):
            passes.append(
                PassOfStage(
                    rank=track.rank,
                    stage=stage,
                    direction=each.direction,
                    microbatch=each.microbatch,
                    chunk=chunks.index(each.stage),
                    start_ms=milliseconds(int(spent.start[0])),
                    end_ms=milliseconds(int(spent.end.max())),
                )
            )
    return passes


def _compute_of(track: DeviceTrack, attributed: TrackAttribution, named: NamedPass) -> Intervals:
    """Return, on CPUs, the compute within a pass's range; on devices, the compute that the pass launched."""
    if track.is_cpu:
        return intersect(attributed.parts["compute"], _span(named.start, named.end))
    ops = track.ops
    launched = (ops.launch_start >= named.start) & (ops.launch_start < named.end)
    launched &= ops.op_class == OpClass.COMPUTE
    return Intervals(ops.start[launched], ops.end[launched])


def _passes(timeline: Timeline, track: DeviceTrack, compute: Intervals, stage: int) -> list[PassOfStage]:
    """Return the passes in a step's compute on one rank: its stretches between messages.

    Times are in ms on the common clock. The passes of a direction are numbered in order, as microbatches.
    """
    messages = np.array([kind[0] in POINT_TO_POINT for kind in track.collectives.kinds], np.bool_)
    chosen = messages[track.collectives.kind]
    times = np.concatenate([track.collectives.start[chosen], track.collectives.end[chosen]])
    edges = distinct(np.concatenate([compute.start[:1], times, compute.end[-1:]]))
    edges = edges[(edges >= compute.start[0]) & (edges <= compute.end[-1])]
    # Device kernels do not show whether they belong to forward or backward.
    backward = backward_passes(timeline.traces[track.trace].events, track.shift_ns) if track.is_cpu else EMPTY
    parts: list[_Part] = []
    for start, stop in pairwise(edges.tolist()):
        parts += _joined(_directions(intersect(compute, _span(start, stop)), backward, known=track.is_cpu))
    longest = max((part.stop - part.start for part in parts), default=0)
    numbers: Counter[str] = Counter()
    passes = []
    for part in parts:
        if part.stop - part.start < _SHORT * longest:
            continue
        passes.append(
            PassOfStage(
                rank=track.rank,
                stage=stage,
                direction=part.direction,
                microbatch=numbers[part.direction],
                start_ms=milliseconds(part.start),
                end_ms=milliseconds(part.stop),
            )
        )
        numbers[part.direction] += 1
    return passes


def _span(start: int, stop: int) -> Intervals:
    return Intervals(np.array([start]), np.array([stop]))


def _directions(compute: Intervals, backward: Intervals, *, known: bool) -> list[_Part]:
    """Return the stretches of compute between two messages, in order, each within one pass.

    `backward` has the times of backward passes. If these are not `known`, all compute is one stretch of direction
    `both`.
    """
    if not known:
        return [_Part("both", int(compute.start[0]), int(compute.end[-1]))] if len(compute) else []
    parts = [_Part("backward", *pair) for pair in intersect(compute, backward).pairs()]
    parts += [_Part("forward", *pair) for pair in subtract(compute, backward).pairs()]
    return sorted(parts, key=lambda part: part.start)


def _joined(parts: list[_Part]) -> list[_Part]:
    """Join consecutive stretches of one direction, and join a short stretch with the stretch before it."""
    longest = max((part.stop - part.start for part in parts), default=0)
    joined: list[_Part] = []
    for part in parts:
        if joined and (part.direction == joined[-1].direction or part.stop - part.start < _SHORT * longest):
            joined[-1] = joined[-1]._replace(stop=part.stop)
        else:
            joined.append(part)
    return joined
