"""Give traces their ranks: one rank per file, or one per device of each process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gpudiag.errors import UnreadableInputError
from gpudiag.intervals import distinct
from gpudiag.model.event import Trace
from gpudiag.model.quantities import MOST_RANKS

if TYPE_CHECKING:
    from gpudiag.trace.sources import TraceFile

#: A trace file and the traces read from it.
ReadFile = tuple["TraceFile", tuple[Trace, ...]]
#: Recordings with fewer distinct durations may be equal by chance.
_MIN_DURATIONS = 100


def rank_per_file(files: Sequence[ReadFile], world_size: int | None) -> list[Trace]:
    """Return the traces with the rank that each states, or else its file name.

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
    """Return the traces of processes that drive several devices, each of which becomes a rank.

    The ranks are numbered through the files in the given order. Only a process with one device has the rank in its file
    name. Copied files get no rank. `world_size` is used if no file name states it.
    """
    files = _without_copies(files)
    world_size = next((file.name_facts.world_size for file, _ in files if file.name_facts.world_size), world_size)
    total = sum(len(traces) for _, traces in files)
    ranked: list[Trace] = []
    next_rank = 0
    for file, traces in files:
        stated = file.name_facts.rank
        first = stated if stated is not None and len(traces) == 1 else next_rank
        next_rank = first + len(traces)
        ranked += [
            msgspec.structs.replace(
                trace,
                rank=rank,
                world_size=world_size or max(total, next_rank),
                notes=(*(file.notes if rank == first else ()), *trace.notes),
            )
            for rank, trace in enumerate(traces, first)
        ]
    return ranked


def _without_copies(files: Sequence[ReadFile]) -> list[ReadFile]:
    """Leave out files that repeat an earlier one; the first trace of the earlier one names its copies."""
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
    """Return whether the events of two traces have the same times, to the nanosecond."""
    a, b = first.events, second.events
    if first.origin_ns != second.origin_ns or len(a) != len(b):
        return False
    if not (np.array_equal(a.start_ns, b.start_ns) and np.array_equal(a.end_ns, b.end_ns)):
        return False
    return len(distinct(a.end_ns - a.start_ns)) >= _MIN_DURATIONS


def check_rank_limits(traces: Sequence[Trace]) -> None:
    """Refuse ranks and world sizes beyond any job, because sets of that size are created from them."""
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
