"""Readers, one folder per format: from a profiler's file to events with roles.

What a framework or a year calls a thing is known to its reader alone. A reader is a module with the names of `Reader`;
one of another package is found by its entry point of the group `gpudiag.readers`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from gpudiag.model.event import Trace
from gpudiag.trace.limits import ReadLimits

#: Ours, by preference: what lies as JSON beside TensorFlow's profiles, TensorFlow made of them.
_OURS = ("xspace", "kineto")


class Reader(Protocol):
    """Reads the files of one format.

    Attributes:
        ENDINGS: how names of such files end, in lower case.
        RANK_PER_DEVICE: one file holds a process that drives several GPUs, each of which is a rank in the analysis.
    """

    ENDINGS: tuple[str, ...]
    RANK_PER_DEVICE: bool

    def recognises(self, path: Path) -> bool:
        """Whether a file that was found in a directory is one of these: by its name, or else by how it begins."""

    def read(self, path: Path, shown: str, limits: ReadLimits) -> tuple[Trace, ...]:
        """The traces in a file: one, or one per device.

        Args:
            path: the file.
            shown: how the user named it; becomes `Trace.source`, and is used in messages.
            limits: bounds on what it may unpack to.

        Raises:
            UnreadableInputError: missing, damaged, cut short, or a trace in which nothing was recorded.
            NotATraceError: not of this format.
            TooLargeError: it unpacks to more than the limits allow.
        """


def reader_named(name: str) -> Reader:
    """One of our own readers, by the name of its folder."""
    return cast("Reader", import_module(f"{__name__}.{name}"))


def reader_of(path: Path) -> Reader:
    """The reader for a file that a person named: by its ending, or who recognises it, or else PyTorch's."""
    for name in _OURS:
        reader = reader_named(name)
        if path.name.lower().endswith(reader.ENDINGS):
            return reader
    return next((reader for reader in _of_others() if reader.recognises(path)), reader)


def recognised(files: list[Path]) -> list[Path]:
    """The traces among the files of a directory: those of the first format of which there are any."""
    for reader in _all():
        if mine := [path for path in files if reader.recognises(path)]:
            return mine
    return []


def may_be_trace(name: str) -> bool:
    """Whether a file of this name can hold a trace at all."""
    return any(name.lower().endswith(reader.ENDINGS) for reader in _all())


def _all() -> Iterator[Reader]:
    """Ours first, so that those of others are looked for only where none of ours serves."""
    yield from (reader_named(name) for name in _OURS)
    yield from _of_others()


def _of_others() -> Iterator[Reader]:
    from importlib.metadata import entry_points  # takes as long as reading a small trace; seldom needed

    yield from (cast("Reader", entry.load()) for entry in entry_points(group="gpudiag.readers"))
