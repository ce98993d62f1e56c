"""Assign ranks to traces: one rank per file, from the trace or the file name, or one rank per device.

File names in use: `rank0.pt.trace.json.gz`, `rank_3.json.gz`, `rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz`,
`trace_rank_2.json`, torchtitan's `iteration_10/rank0_trace.json`, and tensorboard_trace_handler's
`<host>_<pid>.<unix ns>.pt.trace.json.gz`, which has no rank.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gpudiag.errors import UnreadableInputError
from gpudiag.intervals import distinct
from gpudiag.model.event import Trace
from gpudiag.model.quantities import MOST_RANKS

if TYPE_CHECKING:
    from gpudiag.trace.sources import TraceFile

_RANK = re.compile(r"(?:^|[^a-z])(?:rank|worker)[-_ ]?(\d{1,7})(?!\d)", re.IGNORECASE)
_WORLD_SIZE = re.compile(r"(?:world|world[-_]?size|ws)[-_]?(\d{1,7})(?!\d)", re.IGNORECASE)
_HANDLER = re.compile(r"^(?P<worker>.+?)\.(?P<stamp>\d{10,20})\.pt\.trace\.json(?:\.gz)?$")
_HOST_AND_PROCESS = re.compile(r"^(?P<host>.+)_\d{1,10}$")
#: A trace file and the traces read from it.
ReadFile = tuple["TraceFile", tuple[Trace, ...]]
#: Minimum number of distinct durations of events; traces with fewer may be equal by chance.
_MIN_DURATIONS = 100


class NameFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts in a file name; None, "" or 0 if the name does not state them.

    Attributes:
        rank: global rank.
        world_size: number of ranks in the job.
        host: host name, from tensorboard_trace_handler's default worker name.
        worker: worker name; set only if the file name has a time stamp. A worker writes one file per profiled cycle.
        stamp: the time stamp, which is larger for later cycles.
    """

    rank: int | None = None
    world_size: int | None = None
    host: str = ""
    worker: str = ""
    stamp: int = 0


def parse_name(path: Path) -> NameFacts:
    """Parse a file's name. The rank may also be in the directory's name (`rank_3/trace.json`)."""
    rank = _RANK.search(path.name) or _RANK.fullmatch(path.parent.name)
    world_size = _WORLD_SIZE.search(path.name)
    worker, stamp, host = "", 0, ""
    if handler := _HANDLER.match(path.name):
        worker, stamp = handler["worker"], int(handler["stamp"])
        named = _HOST_AND_PROCESS.match(worker)
        host = named["host"] if named and not _RANK.search(worker) else ""  # `rank_3` names no host
    return NameFacts(
        rank=int(rank[1]) if rank else None,
        world_size=int(world_size[1]) if world_size and int(world_size[1]) > 0 else None,
        host=host,
        worker=worker,
        stamp=stamp,
    )


def rank_per_file(files: Sequence[ReadFile], world_size: int | None) -> list[Trace]:
    """Return the traces with ranks: the rank that a trace states, or else the rank in its file name.

    `world_size` is used if neither the trace nor the file name states it.
    """
    return [
        msgspec.structs.replace(
            trace,
            rank=file.name_facts.rank if trace.rank is None else trace.rank,
            world_size=trace.world_size or file.name_facts.world_size or world_size,
            host=trace.host or file.name_facts.host,
            notes=(*file.notes, *trace.notes),
        )
        for file, traces in files
        for trace in traces
    ]


def rank_per_device(files: Sequence[ReadFile], world_size: int | None) -> list[Trace]:
    """Return the traces with ranks, for processes that drive several devices. Each device becomes a rank.

    Ranks are numbered consecutively over the files in the given order. A process with one device gets the rank in its
    file name. Copies of a file are left out. `world_size` is used if no file name states one. If it is None, the job
    has as many ranks as devices, or more if a file name states a higher rank.
    """
    files = _without_copies(files)
    world_size = next((file.name_facts.world_size for file, _ in files if file.name_facts.world_size), world_size)
    firsts: list[int] = []
    next_rank, ranks = 0, sum(len(traces) for _, traces in files)
    for file, traces in files:
        stated = file.name_facts.rank
        firsts.append(stated if stated is not None and len(traces) == 1 else next_rank)
        next_rank = firsts[-1] + len(traces)
        ranks = max(ranks, next_rank)
    return [
        msgspec.structs.replace(
            trace,
            rank=rank,
            world_size=world_size or ranks,
            notes=(*(file.notes if rank == first else ()), *trace.notes),
        )
        for first, (file, traces) in zip(firsts, files, strict=True)
        for rank, trace in enumerate(traces, first)
    ]


def _without_copies(files: Sequence[ReadFile]) -> list[ReadFile]:
    """Leave out copies of an earlier file, and add the names of the copies to the first trace of the earlier file."""
    kept: list[ReadFile] = []
    for file, traces in files:
        original = next((index for index, (_, earlier) in enumerate(kept) if _equal_traces(earlier, traces)), None)
        if original is None:
            kept.append((file, traces))
            continue
        original_file, (first, *others) = kept[original]
        kept[original] = original_file, (msgspec.structs.replace(first, copies=(*first.copies, file.shown)), *others)
    return kept


def _equal_traces(first: tuple[Trace, ...], second: tuple[Trace, ...]) -> bool:
    return len(first) == len(second) and all(map(_equal_times, first, second))


def _equal_times(first: Trace, second: Trace) -> bool:
    """Return whether two traces have equal times in ns, and enough distinct durations to exclude chance."""
    a, b = first.events, second.events
    if first.origin_ns != second.origin_ns or len(a) != len(b):
        return False
    if not (np.array_equal(a.start_ns, b.start_ns) and np.array_equal(a.end_ns, b.end_ns)):
        return False
    return len(distinct(a.end_ns - a.start_ns)) >= _MIN_DURATIONS


def check_rank_limits(traces: Sequence[Trace]) -> None:
    """Refuse ranks and world sizes that no job has, because later code makes sets of that size."""
    for trace in traces:
        if (trace.world_size or 0) > MOST_RANKS or (trace.rank or 0) >= MOST_RANKS:
            raise UnreadableInputError(
                f"{trace.source} says rank {trace.rank} of {trace.world_size}; no job has more than {MOST_RANKS} ranks",
                "The file or its name is damaged: leave it out, or record again.",
            )


def check_unique_ranks(traces: Sequence[Trace]) -> None:
    """Refuse two traces that claim the same rank."""
    first: dict[int, Trace] = {}
    for trace in traces:
        if trace.rank is None:
            continue
        if trace.rank in first:
            raise UnreadableInputError(
                f"two traces claim rank {trace.rank}: {first[trace.rank].source} and {trace.source}",
                "Give the traces of one run only: leave one of the two out.",
            )
        first[trace.rank] = trace
