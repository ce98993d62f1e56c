"""Draw a step of all ranks as text: a row per rank, a character per interval.

A bucket is a part of the step time, such as compute or copy.
"""

from __future__ import annotations

from gpudiag.model.analysis import BUCKETS
from gpudiag.model.sanitize import one_line
from gpudiag.model.step_view import RankView, StepTrack, StepView
from gpudiag.report import figures
from gpudiag.report.palette import ASCII_GLYPHS, LABELS

_MOST_ROWS = 64
_MOST_WAITS = 8
_LONGEST_LABEL = 24
#: Compute is drawn if compute and another bucket fill an interval equally.
_COMPUTE = BUCKETS.index("compute")


def step_timeline(step: StepView, width: int = 100) -> str:
    """Return the drawing. Each character shows the bucket that fills most of its interval; spaces are outside the step.

    Args:
        step: the step.
        width: number of characters per rank, without the label.
    """
    interval = figures.milliseconds(step.length / 1e6 / width)
    title = f"step {step.step}: {figures.milliseconds(step.length / 1e6)} ms; each character is {interval} ms"
    shown = step.ranks[:_MOST_ROWS]
    labels = [one_line(f"rank {rank.rank}")[:_LONGEST_LABEL] for rank in shown]
    longest = max(map(len, labels), default=0)
    lines = [title]
    lines += [f"{label:<{longest}} {_row(rank, step.length, width)}" for label, rank in zip(labels, shown, strict=True)]
    left_out = step.ranks_left_out + len(step.ranks) - len(shown)
    lines += [f"and {left_out} more ranks"] if left_out else []
    lines.append(", ".join(f"{ASCII_GLYPHS[bucket]} {LABELS[bucket]}" for bucket in BUCKETS))
    waits = sorted(step.waits, key=lambda wait: -wait.length)[:_MOST_WAITS]
    lines += [
        f"rank {wait.rank} waits {figures.milliseconds(wait.length / 1e6)} ms for rank {wait.on_rank}, "
        f"from {figures.milliseconds(wait.start / 1e6)} ms"
        for wait in waits
    ]
    return "\n".join(lines)


def _row(rank: RankView, length: int, width: int) -> str:
    """Return `width` characters for a step of `length` ns; "" if the rank has no track of buckets."""
    track = next((track for track in rank.tracks if track.kind == "buckets"), None)
    if track is None or length <= 0:
        return ""
    return "".join(
        ASCII_GLYPHS[BUCKETS[bucket]] if bucket is not None else " " for bucket in _columns(track, length, width)
    )


def _columns(track: StepTrack, length: int, width: int) -> list[int | None]:
    """Divide `length` ns into `width` intervals. Return the index of the bucket with the most time in each, or None."""
    filled: list[dict[int, float]] = [{} for _ in range(width)]
    scale = width / length
    for start, span, bucket in zip(track.start, track.length, track.colour, strict=True):
        begin, end = max(0.0, start * scale), min(float(width), (start + span) * scale)
        for column in range(int(begin), min(width, int(end) + 1)):
            covered = min(end, column + 1) - max(begin, column)
            if covered > 0 and bucket < len(BUCKETS):  # a larger index in a file is no bucket
                filled[column][bucket] = filled[column].get(bucket, 0.0) + covered
    return [max(cell, key=lambda bucket: (cell[bucket], bucket == _COMPUTE)) if cell else None for cell in filled]
