"""Read TensorFlow's profiles as whole processes or as serialized bytes, for tools that need more than traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpudiag.trace.readers import reader_named, reader_of
from gpudiag.trace.readers.xspace.process import Process
from gpudiag.trace.readers.xspace.space import read_xspace
from gpudiag.trace.sources import find_sources
from gpudiag.trace.unpack import ReadLimits, read_whole


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """A serialized XSpace (`data`) and its file's name without endings (`name`), which is the host's name."""

    name: str
    data: bytes


def read_processes(paths: Sequence[Path | str], *, limits: ReadLimits | None = None) -> tuple[Process, ...]:
    """Read one process per profile, with all of its GPUs and threads. Raise the same errors as `read_traces`."""
    limits = limits or ReadLimits()
    return tuple(read_xspace(file.path, file.shown, limits) for file in find_sources(paths))


def read_profiles(paths: Sequence[Path | str], *, limits: ReadLimits | None = None) -> tuple[Profile, ...]:
    """Read serialized profiles, unpacked; ignore files of other formats. Raise the same errors as `read_traces`."""
    limits = limits or ReadLimits()
    return tuple(
        Profile(
            name=file.path.name.removesuffix(".gz").removesuffix(".xplane.pb"),
            data=bytes(read_whole(file.path, file.shown, limits, binary=True)),
        )
        for file in find_sources(paths)
        if reader_of(file.path) is reader_named("xspace")
    )
