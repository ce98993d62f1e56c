"""Collect warnings about a timeline: reasons not to trust its figures, and advice for recording again."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from gpudiag.analysis.timeline.calibration import FEW_STEPS
from gpudiag.analysis.timeline.collectives import Matching
from gpudiag.analysis.timeline.completeness import (
    DeviceActivity,
    incomplete_activity,
    partial_coverage,
    ranks_in_words,
    thin_recording,
)
from gpudiag.analysis.timeline.mixed_runs import mixed_runs
from gpudiag.model.analysis import Validity
from gpudiag.model.event import Trace, framework_of
from gpudiag.model.timeline import SAME_CLOCK_NS, DeviceTrack
from gpudiag.units import NS_PER_MS

if TYPE_CHECKING:
    from gpudiag.analysis.timeline.rank_events import RankEvents

_STEP_MARKS = {
    "pytorch": "Call prof.step() each step",
    "tensorflow": "Put each step into tf.profiler.experimental.Trace('train', step_num=step, _r=1)",
    "jax": "Put each step into jax.profiler.StepTraceAnnotation('train', step_num=step)",
    "unknown": "Mark each step with a range of its number",
}
#: Frameworks for which gpudiag.profile() marks steps.
_OWN_MARKS = ("pytorch", "tensorflow")
#: Sources of steps other than marks, each with a description for messages.
_UNMARKED = {
    "optimizer": "steps were taken from the ends of Optimizer.step",
    "range": "steps were taken from named ranges or calls of the whole model",
    "pattern": "steps were taken from a repeating pattern of launches",
    "none": "no repetition was found either, so the whole capture counts as one step",
}


def examine(
    traces: Sequence[Trace],
    views: Sequence[RankEvents],
    tracks: Sequence[DeviceTrack],
    matching: Matching,
    *,
    world_size: int,
    activities: Sequence[DeviceActivity],
    shares: Sequence[float],
    repeated_ranks: Set[int] = frozenset(),
) -> tuple[Validity, ...]:
    """Return all warnings about the timeline.

    Args:
        traces: traces of the job, one per rank.
        views: each trace's work as the timeline uses it.
        tracks: all tracks.
        matching: the collectives matched across ranks.
        world_size: number of ranks.
        activities: device activity of each trace.
        shares: share of each track's recorded busy time that its steps represent (`covered_share`).
        repeated_ranks: ranks whose traces repeat another rank's trace and were left out with a warning.
    """
    # Few collectives of these ranks match, which `mixed_runs` must not take for another run.
    lossy = [trace.rank for trace, act in zip(traces, activities, strict=True) if act.missing or act.lossy]
    return (
        *mixed_runs(traces, views, tracks, lossy),
        *incomplete_activity(traces, activities),
        *thin_recording(traces, views, tracks),
        *partial_coverage(tracks, shares),
        *_missing_ranks(traces, world_size, matching, repeated_ranks),
        *_steps(traces, tracks),
        *_dropped(traces),
        *_clocks(matching),
        *(Validity(code="repaired-input", message=note) for trace in traces for note in trace.notes),
    )


def _missing_ranks(traces: Sequence[Trace], world_size: int, matching: Matching, repeated: Set[int]) -> list[Validity]:
    """Warn about ranks without a trace, except `repeated` ranks, which another warning names.

    If all ranks below `world_size` have a trace, the ranks that process groups contain but that have no trace are
    missing.
    """
    present = {trace.rank for trace in traces}
    absent = sorted(set(range(world_size)) - present - repeated) or sorted(matching.missing_ranks - repeated)
    if not absent:
        return []
    shown = ranks_in_words(absent).partition(" ")[2]
    message = (
        f"{len(absent)} of {world_size} ranks missing ({shown}): waiting for a missing rank cannot be distinguished "
        "from transferring and counts as communication_transfer. Give the traces of all ranks of the same steps."
    )
    return [Validity(code="missing-ranks", message=message)]


def _steps(traces: Sequence[Trace], tracks: Sequence[DeviceTrack]) -> list[Validity]:
    """Warn about steps without marks, too few steps, and different steps on ranks."""
    warnings = []
    sources = {track.steps.source for track in tracks}
    how = "; ".join(text for source, text in _UNMARKED.items() if source in sources)
    if how:
        framework = framework_of(traces)
        mark = _STEP_MARKS.get(framework, _STEP_MARKS["unknown"])
        ours = ", or use gpudiag.profile()" if framework in _OWN_MARKS else ""
        message = f"the trace has no step marks: {how}. {mark}{ours}."
        warnings.append(Validity(code="no-step-marks", message=message))
    fewest = min((len(track.window_steps) for track in tracks), default=FEW_STEPS)
    if fewest < FEW_STEPS:
        message = (
            f"{fewest} step(s) could be analysed, as the first and the last of a capture are incomplete. "
            f"Record {FEW_STEPS + 2} or more steps after warm-up."
        )
        warnings.append(Validity(code="few-steps", message=message))
    if len({tuple(track.window_steps.tolist()) for track in tracks}) > 1:
        message = (
            "the ranks recorded different steps; each rank's own were analysed. Start all captures at the same step."
        )
        warnings.append(Validity(code="different-steps", message=message))
    return warnings


def _dropped(traces: Sequence[Trace]) -> list[Validity]:
    """Return a warning if the profiler lost events."""
    dropped = sum(trace.dropped_events for trace in traces)
    if not dropped:
        return []
    message = (
        f"the profiler lost {dropped} events: buckets are lower bounds. Record fewer steps, without shapes and stacks."
    )
    return [Validity(code="dropped-events", message=message)]


def _clocks(matching: Matching) -> list[Validity]:
    """Warn if the ranks' clocks could be aligned only roughly or ambiguously."""
    warnings = []
    worst = max(matching.clocks, key=lambda clock: clock.residual_ns, default=None)
    if worst is not None and worst.residual_ns > SAME_CLOCK_NS:
        message = (
            f"rank clocks agree only to ±{worst.residual_ns / NS_PER_MS:.2f} ms (worst: rank {worst.rank}): waits "
            "shorter than that may be attributed to the wrong rank."
        )
        warnings.append(Validity(code="clock-skew", message=message))
    if matching.ambiguous:
        message = (
            "the clocks of the ranks have no common origin and the collectives fit together in more than one way: "
            "waits may be attributed to the wrong rank. Keep baseTimeNanoseconds in the traces (PyTorch 2.3 or later)."
        )
        warnings.append(Validity(code="clock-skew", message=message))
    return warnings
