"""Convert profilers' files to events with roles; each format has a reader in its own folder.

Only readers interpret the names that a framework or a version gives to events. A reader is a module with functions and
attributes of the protocol `Reader`. Other packages provide readers by entry points in the group `gpudiag.readers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Protocol, cast

from gpudiag.model.event import Trace
from gpudiag.trace.ranks import ReadFile, rank_per_file
from gpudiag.trace.unpack import ReadLimits, estimated_memory_bytes

#: Readers in this folder, by preference: digests before the traces that they repeat, and XSpace files before the JSON
#: traces that TensorFlow derives from them.
_BUILT_IN = ("digest", "xspace", "kineto", "nsys")
#: Reader for files that the user named and no reader recognises.
_DEFAULT = "kineto"


class Reader(Protocol):
    """Reader of the files of one format.

    A reader may also define two functions, for formats with several ranks per file or an unusual size in memory:

    `assign_ranks(files, world_size)`: set the ranks of the traces in `files`; see `gpudiag.trace.ranks`.
    `memory_bytes(path, size)`: estimate the memory that reading a file takes, from its size on disk.

    Attributes:
        ENDINGS: endings of names of files in the format, in lower case.
    """

    ENDINGS: tuple[str, ...]

    def recognises(self, path: Path) -> bool:
        """Return whether a file found in a directory has this format, judged by its name or else by its first bytes."""

    def read(self, path: Path, shown: str, limits: ReadLimits) -> tuple[Trace, ...]:
        """Return the traces in a file: one, or one per device.

        Args:
            path: the file.
            shown: name of the file in messages and in `Trace.source`.
            limits: limits on the unpacked size.

        Raises:
            UnreadableInputError: the file is missing, damaged, cut short, or a trace without events.
            NotATraceError: the file does not have this format.
            TooLargeError: the file unpacks to more than the limits allow.
        """


def reader_named(name: str) -> Reader:
    """Return a built-in reader by the name of its folder."""
    return cast("Reader", import_module(f"{__name__}.{name}"))


def reader_of(path: Path) -> Reader:
    """Return the reader for a file that the user gave, by its ending or content; `kineto` if no reader fits."""
    for reader in _built_in():
        if path.name.lower().endswith(reader.ENDINGS):
            return reader
    return next((reader for reader in _third_party() if reader.recognises(path)), reader_named(_DEFAULT))


def recognised(files: list[Path]) -> list[Path]:
    """Return the traces among the files of a directory: all files of the most preferred format among them."""
    for reader in _all_readers():
        if traces := [path for path in files if reader.recognises(path)]:
            return traces
    return []


def may_be_trace(name: str) -> bool:
    """Return whether a file of this name can be a trace."""
    return any(name.lower().endswith(reader.ENDINGS) for reader in _all_readers())


def memory_bytes(path: Path, size: int) -> int:
    """Estimate the memory that reading a file takes, from its size on disk."""
    estimate: Callable[[Path, int], int] = getattr(reader_of(path), "memory_bytes", estimated_memory_bytes)
    return estimate(path, size)


def assign_ranks(files: Iterable[ReadFile], world_size: int | None) -> list[Trace]:
    """Return all traces of these files with their ranks, as the reader of each file assigns them.

    `world_size` is the number of ranks, for files that do not state it. A reader without `assign_ranks` reads one rank
    per file.
    """

    def assigning(file: ReadFile) -> Callable[[Sequence[ReadFile], int | None], list[Trace]]:
        assign: Callable[[Sequence[ReadFile], int | None], list[Trace]]
        assign = getattr(reader_of(file[0].path), "assign_ranks", rank_per_file)
        return assign

    # `groupby` joins only neighbours. Files of readers without `assign_ranks` come first, so that they are one group.
    ordered = sorted(files, key=lambda file: assigning(file) is not rank_per_file)
    return [trace for assign, group in groupby(ordered, assigning) for trace in assign(list(group), world_size)]


def _built_in() -> Iterator[Reader]:
    return map(reader_named, _BUILT_IN)


def _all_readers() -> Iterator[Reader]:
    """Yield the built-in readers first, so that other packages are searched only if no built-in reader fits."""
    yield from _built_in()
    yield from _third_party()


def _third_party() -> Iterator[Reader]:
    from importlib.metadata import entry_points  # the import takes as long as reading a small trace

    yield from (cast("Reader", entry.load()) for entry in entry_points(group="gpudiag.readers"))
