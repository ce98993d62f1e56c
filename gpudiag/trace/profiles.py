"""TensorFlow's profiles for other tools: a process whole, with all of its GPUs and threads, and files as they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpudiag.trace.limits import ReadLimits
from gpudiag.trace.readers import reader_named, reader_of
from gpudiag.trace.readers.xspace.process import Process
from gpudiag.trace.readers.xspace.space import read_xspace
from gpudiag.trace.sources import find_sources
from gpudiag.trace.unpack import read_whole


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One of TensorFlow's profiles as it is.

    Attributes:
        name: its file's name without endings: the host.
        data: the serialized XSpace.
    """

    name: str
    data: bytes


def read_processes(paths: Sequence[Path | str], *, limits: ReadLimits | None = None) -> tuple[Process, ...]:
    """Read TensorFlow's profiles, one process per file, whole: with all of its GPUs and threads. Raises as above."""
    limits = limits or ReadLimits()
    return tuple(read_xspace(source.path, source.shown, limits) for source in find_sources(paths))


def read_profiles(paths: Sequence[Path | str], *, limits: ReadLimits | None = None) -> tuple[Profile, ...]:
    """TensorFlow's profiles as they are, unpacked. Raises as above."""
    limits = limits or ReadLimits()
    return tuple(
        Profile(
            name=source.path.name.removesuffix(".gz").removesuffix(".xplane.pb"),
            data=bytes(read_whole(source.path, source.shown, limits, binary=True)),
        )
        for source in find_sources(paths)
        if reader_of(source.path) is reader_named("xspace")
    )
