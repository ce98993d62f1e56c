"""All doubts about a timeline: the recording's own here, those that make every verdict unsure in files of their own."""

from __future__ import annotations

from collections.abc import Sequence, Set

from gpudiag.analysis.timeline.calibration import FEW_STEPS, SAME_CLOCK_NS
from gpudiag.analysis.timeline.collectives import Matching
from gpudiag.analysis.timeline.validity import device_activity, mixed_runs, partial_coverage, thin_recording
from gpudiag.analysis.timeline.validity.device_activity import DeviceActivity
from gpudiag.analysis.timeline.validity.wording import ranks_in_words
from gpudiag.model.analysis import Validity
from gpudiag.model.event import Trace, framework_of
from gpudiag.model.timeline import DeviceTrack
from gpudiag.units import NS_PER_MS

_STEP_MARKS = {
    "pytorch": "Call prof.step() each step",
    "tensorflow": "Put each step into tf.profiler.experimental.Trace('train', step_num=step, _r=1)",
    "jax": "Put each step into jax.profiler.StepTraceAnnotation('train', step_num=step)",
    "unknown": "Mark each step with a range of its number",
}
#: Frameworks whose steps gpudiag itself marks.
_OWN_MARKS = ("pytorch", "tensorflow")


def examine(
    traces: Sequence[Trace],
    tracks: Sequence[DeviceTrack],
    matching: Matching,
    *,
    world: int,
    activities: Sequence[DeviceActivity],
    repeated_ranks: Set[int] = frozenset(),
) -> tuple[Validity, ...]:
    """Return all validity warnings that the timeline itself gives rise to.

    Args:
        traces: of the job, one per rank.
        lanes: all lanes.
        matching: which collectives of which ranks are one.
        world: number of ranks.
        activities: of each trace, what it launched and what of it was recorded.
        repeated_ranks: ranks whose traces were left out, because they repeat another's, and of which that is said.
    """
    lossy = [
        trace.rank for trace, activity in zip(traces, activities, strict=True) if activity.missing or activity.lossy
    ]
    found = [
        *mixed_runs.doubts(traces, tracks, lossy),
        *device_activity.doubts(traces, activities),
        *thin_recording.doubts(traces, tracks),
        *partial_coverage.doubts(tracks),
        *_ranks(traces, world, matching, repeated_ranks),
        *_steps(traces, tracks),
        *_dropped(traces),
        *_clocks(matching),
    ]
    found.extend(Validity(code="repaired-input", message=note) for trace in traces for note in trace.notes)
    return tuple(found)


def _ranks(traces: Sequence[Trace], world: int, matching: Matching, repeated: Set[int] = frozenset()) -> list[Validity]:
    present = {trace.rank for trace in traces}
    absent = sorted(set(range(world)) - present - repeated) or sorted(matching.missing_ranks - repeated)
    if not absent:
        return []
    shown = ranks_in_words(absent).partition(" ")[2]
    message = (
        f"{len(absent)} of {world} ranks missing ({shown}): waiting for a missing rank cannot be told from "
        "transferring and counts as communication_transfer. Give the traces of all ranks of the same steps."
    )
    return [Validity(code="missing-ranks", message=message)]


def _steps(traces: Sequence[Trace], tracks: Sequence[DeviceTrack]) -> list[Validity]:
    found = []
    sources = {track.steps.source for track in tracks}
    if sources & {"optimizer", "range", "pattern", "none"}:
        how = {
            "optimizer": "steps were taken from the ends of Optimizer.step",
            "range": "steps were taken from named ranges or calls of the whole model",
            "pattern": "steps were taken from a repeating pattern of launches",
            "none": "no repetition was found either, so the whole capture counts as one step",
        }
        said = "; ".join(how[source] for source in ("optimizer", "range", "pattern", "none") if source in sources)
        framework = framework_of(traces)
        mark = _STEP_MARKS.get(framework, _STEP_MARKS["unknown"])
        ours = ", or use gpudiag.profile()" if framework in _OWN_MARKS else ""
        message = f"the trace has no step marks: {said}. {mark}{ours}."
        found.append(Validity(code="no-step-marks", message=message))
    fewest = min((len(track.window_steps) for track in tracks), default=FEW_STEPS)
    if fewest < FEW_STEPS:
        message = (
            f"{fewest} step(s) could be analysed, as the first and the last of a capture are incomplete. "
            f"Record {FEW_STEPS + 2} or more steps after warm-up."
        )
        found.append(Validity(code="few-steps", message=message))
    differing = {tuple(track.window_steps.tolist()) for track in tracks}
    if len(differing) > 1:
        message = (
            "the ranks recorded different steps; each rank's own were analysed. Start all captures at the same step."
        )
        found.append(Validity(code="different-steps", message=message))
    return found


def _dropped(traces: Sequence[Trace]) -> list[Validity]:
    dropped = sum(trace.dropped_events for trace in traces)
    if not dropped:
        return []
    message = (
        f"the profiler lost {dropped} events: buckets are lower bounds. Record fewer steps, without shapes and stacks."
    )
    return [Validity(code="dropped-events", message=message)]


def _clocks(matching: Matching) -> list[Validity]:
    found = []
    worst = max(matching.clocks, key=lambda clock: clock.residual_ns, default=None)
    if worst is not None and worst.residual_ns > SAME_CLOCK_NS:
        message = (
            f"rank clocks agree only to ±{worst.residual_ns / NS_PER_MS:.2f} ms (worst: rank {worst.rank}): waits "
            "shorter than that may be attributed to the wrong rank."
        )
        found.append(Validity(code="clock-skew", message=message))
    if matching.ambiguous:
        message = (
            "the clocks of the ranks have no common origin and the collectives fit together in more than one way: "
            "waits may be attributed to the wrong rank. Keep baseTimeNanoseconds in the traces (PyTorch 2.3 or later)."
        )
        found.append(Validity(code="clock-skew", message=message))
    return found
