"""Make the data of the page's timeline: the typical step as JSON, and the other steps compressed."""

from __future__ import annotations

import base64
import gzip
from itertools import pairwise
from typing import Any

import msgspec

from gpudiag.model.analysis import BUCKETS
from gpudiag.model.sanitize import one_line
from gpudiag.model.step_view import UNMARKED_INPUT, StepTrack, StepView
from gpudiag.report import figures
from gpudiag.report.palette import LABELS

#: The script's unit of time (a tick). Shorter times are less than a pixel at any zoom, and would make the page larger.
_TICK_NS = 100
#: Maximum length of a span's name in the page, in characters.
LONGEST_NAME = 160
ASSUMED_INPUT = "no events: assumed data loading"


def steps_part(step: StepView) -> dict[str, Any]:
    """Return the template's variables, of which `step_json`, `buckets_json` and `others_packed` are escaped already.

    `others_packed` is gzipped JSON in base64: a list of steps as in `step_json`, without the names.
    """
    # (step, its index in the list of other steps); the typical step has the index -1.
    choices = sorted([(step, -1), *((other, index) for index, other in enumerate(step.others))], key=_step_number)
    names = [one_line(name)[:LONGEST_NAME] for name in step.names]
    others = msgspec.json.encode([_drawn(other) for other in step.others])
    return {
        "step_json": _json({**_drawn(step), "names": names}),
        "buckets_json": _json(BUCKETS),
        "others_packed": base64.b64encode(gzip.compress(others, mtime=0)).decode() if step.others else "",
        "steps": [(index, _choice(view, typical=index < 0), _words(view)) for view, index in choices],
        "step_words": _words(step),
        "step_legend": _legend(step),
    }


def _step_number(choice: tuple[StepView, int]) -> int:
    return choice[0].step


def _drawn(step: StepView) -> dict[str, Any]:
    """Return a step in the script's format. Times are in ticks, and each start is relative to the previous start."""
    ranks = [
        {
            "rank": rank.rank,
            "device": one_line(rank.device)[:LONGEST_NAME],
            "begin": rank.begin // _TICK_NS,
            "end": rank.end // _TICK_NS,
            "tracks": [_track(track) for track in rank.tracks],
        }
        for rank in step.ranks
    ]
    waits = [(wait.rank, wait.on_rank, wait.start // _TICK_NS, wait.length // _TICK_NS) for wait in step.waits]
    return {"step": step.step, "length": step.length // _TICK_NS, "ranks": ranks, "waits": waits}


def _track(track: StepTrack) -> dict[str, Any]:
    """Return a track in the script's format."""
    # Starts and ends are rounded, rather than lengths, so that adjacent spans stay adjacent.
    starts = [round(start / _TICK_NS) for start in track.start]
    ends = [round((start + length) / _TICK_NS) for start, length in zip(track.start, track.length, strict=True)]
    return {
        "kind": track.kind,
        "label": one_line(track.label)[:LONGEST_NAME],
        "start": [after - before for before, after in pairwise([0, *starts])],
        "length": [end - start for start, end in zip(starts, ends, strict=True)],
        "name": track.name,
        "colour": track.colour,
        "depth": track.depth if any(track.depth) else (),
    }


def _longest(step: StepView) -> str:
    """Return the step time of the slowest rank in ms, as text."""
    return figures.milliseconds(max((rank.end - rank.begin for rank in step.ranks), default=0) / 1e6)


def _choice(step: StepView, *, typical: bool) -> str:
    return f"step {step.step}: {_longest(step)} ms{', typical' if typical else ''}"


def _words(step: StepView) -> str:
    """Return sentences about the length of a step, and about ranks and events that are not shown."""
    left_out = sum(track.left_out for rank in step.ranks for track in rank.tracks)
    longest = _longest(step)
    length = figures.milliseconds(step.length / 1e6)
    words = f"Step {step.step}: {longest} ms on its slowest rank."
    if length != longest:
        words += f" The timeline covers {length} ms, from the first rank's start to the last rank's end."
    if step.ranks_left_out:
        words += f" {step.ranks_left_out} more ranks are not shown."
    if left_out:
        words += f" {left_out} events too short to see are omitted."
    return words


def _legend(step: StepView) -> list[tuple[str, str]]:
    """Return (label, color) of each kind of span in the timeline."""
    tracks = [track for rank in step.ranks for track in rank.tracks]
    seen = {colour for track in tracks if track.kind == "buckets" for colour in track.colour}
    buckets = [(LABELS[bucket], bucket) for index, bucket in enumerate(BUCKETS) if index in seen]
    if any(step.names[name] == UNMARKED_INPUT for track in tracks if track.kind == "buckets" for name in track.name):
        buckets.append((ASSUMED_INPUT, "unmarked"))
    if step.waits:
        buckets.append(("others wait for this rank", "waited"))
    device = [("communication kernel", "communication")] if any(track.kind == "device" for track in tracks) else []
    return [
        *buckets,
        *device,
        ("host operator", "operator"),
        *([("source line", "source-line")] if any(track.kind == "lines" for track in tracks) else []),
        ("annotated range", "annotation"),
        ("CUDA call", "runtime"),
    ]


def _json(content: object) -> str:
    """Return JSON that cannot close its script element."""
    text = msgspec.json.encode(content).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
