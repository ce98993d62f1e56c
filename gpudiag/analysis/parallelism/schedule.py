"""Find the schedule of a pipeline: its microbatches, and the parts of the model (chunks) that each rank computes.

Traces of `torch.distributed.pipelining` name the passes: `Forward 3` (GPipe), `PP:2F0` (stage 2, forward, microbatch
0). Without names the messages are counted. With v chunks per rank and m microbatches, a rank at either end of the
pipeline sends (2v - 1) m messages per step, and every other rank sends 2v m.

Worked example. Ranks of four stages send 12, 16, 16 and 12 messages per step: m = 16 - 12 = 4 microbatches, and
v = 16 / (2 m) = 2 chunks. With two stages all ranks are at an end, so that one chunk is assumed.
"""

from __future__ import annotations

import re
from collections import Counter

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.parallelism.rank_grid import RankGrid
from gpudiag.intervals import among
from gpudiag.model.event import EventKind, EventTable
from gpudiag.model.parallelism import Pass
from gpudiag.model.timeline import DeviceTrack, Timeline

#: Names of passes. B is a backward pass; I and W are its halves, for the gradients of inputs and of weights.
_ACTION = re.compile(r"PP:(?P<stage>\d+)(?P<kind>[FBIW])(?P<microbatch>\d+)|(?P<word>Forward|Backward) (?P<number>\d+)")
_BACKWARD_KINDS = frozenset("BIW")


class PipelineSchedule(msgspec.Struct, frozen=True):
    """The schedule of a step: number of microbatches, and of parts of the model per rank."""

    microbatches: int
    chunks: int = 1


class NamedPass(msgspec.Struct, frozen=True):
    """A pass that the trace names: a host range, in ns on the common clock."""

    direction: Pass
    stage: int
    microbatch: int
    start: int
    end: int


def schedule_of(timeline: Timeline, grid: RankGrid | None) -> PipelineSchedule | None:
    """Return the schedule; None without a pipeline, or if nothing shows its microbatches."""
    if grid is None or grid.stages < 2:  # one stage is no pipeline
        return None
    named = [passes for track in timeline.tracks if (passes := named_passes(timeline, track))]
    if named:
        return PipelineSchedule(
            microbatches=max(each.microbatch for passes in named for each in passes) + 1,
            chunks=max(len({each.stage for each in passes}) for passes in named),
        )
    counts = _messages_per_step(timeline, grid)
    fewest, most = min(counts, default=0), max(counts, default=0)
    if not fewest:
        return None
    microbatches = most - fewest
    chunks = most // (2 * microbatches) if microbatches else 0
    if grid.stages > 2 and chunks and fewest == (2 * chunks - 1) * microbatches:  # the middle stages send more
        return PipelineSchedule(microbatches, chunks)
    return PipelineSchedule(fewest)  # one chunk: a rank at an end sends a message per microbatch


def named_passes(timeline: Timeline, track: DeviceTrack) -> list[NamedPass]:
    """Return the passes that the trace of a rank names, within the analysed steps, in order of time.

    A name without a stage (`Forward 3`) counts as stage 0.
    """
    events = timeline.traces[track.trace].events
    matches = {index: match for index, name in enumerate(events.names) if (match := _ACTION.fullmatch(name))}
    if not matches:
        return []
    rows = _rows_named(events, np.array(list(matches), np.int64), track)
    passes = []
    for row in rows.tolist():
        match = matches[int(events.name[row])]
        backward = match["word"] == "Backward" or match["kind"] in _BACKWARD_KINDS
        passes.append(
            NamedPass(
                direction="backward" if backward else "forward",
                stage=int(match["stage"] or 0),
                microbatch=int(match["microbatch"] or match["number"]),
                start=int(events.start_ns[row]) + track.shift_ns,
                end=int(events.end_ns[row]) + track.shift_ns,
            )
        )
    return passes


def _rows_named(events: EventTable, names: NDArray[np.int64], track: DeviceTrack) -> NDArray[np.int64]:
    rows = events.rows_of(EventKind.ANNOTATION)
    rows = rows[among(events.name[rows], names)]
    start = events.start_ns[rows] + track.shift_ns
    rows = rows[(start >= track.bounds[0]) & (start < track.bounds[-1])]
    ordered: NDArray[np.int64] = rows[np.argsort(events.start_ns[rows], kind="stable")]
    return ordered


def _messages_per_step(timeline: Timeline, grid: RankGrid) -> list[int]:
    """Return max(sends, receives) per step for each rank that communicates with other stages.

    A batched message (`send_recv`) counts once. Groups of unknown role are assumed to be between stages. In
    a pipeline, each rank sends as many messages as it receives, so that the larger number is the more complete one.
    """
    counts = []
    for track in timeline.tracks:
        table = track.collectives
        inside = (table.start >= track.bounds[0]) & (table.start < track.bounds[-1])
        between_stages = [
            grid.role_of_group.get(track.rank, {}).get(group, "pipeline") == "pipeline"
            for _, group, _, _ in table.kinds
        ]
        kinds = [kind for kind in table.kind[inside].tolist() if between_stages[kind]]
        calls = Counter(table.kinds[kind][0] for kind in kinds)
        most = max(calls["send"], calls["recv"]) + calls["send_recv"]
        if most and len(track.window_steps):
            counts.append(round(most / len(track.window_steps)))
    return counts
