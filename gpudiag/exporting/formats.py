"""The formats that `gpudiag export` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudiag.errors import UsageError
from gpudiag.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpudiag.exporting.scene import Scene


class Format(Record, frozen=True, kw_only=True):
    """A format: its name, the ending of its files, and what opens them."""

    name: str
    ending: str
    opens: str


FORMATS = (
    Format(name="xspace", ending=".xplane.pb", opens="TensorBoard's profile plugin (gpudiag view does both)"),
    Format(name="chrome", ending=".trace.json.gz", opens="chrome://tracing or https://ui.perfetto.dev"),
    Format(name="perfetto", ending=".pftrace", opens="https://ui.perfetto.dev"),
    Format(name="csv", ending=".csv", opens="a notebook or a spreadsheet"),
)


def format_named(name: str) -> Format:
    """The format of that name.

    Raises:
        UsageError: there is none.
    """
    for one in FORMATS:
        if one.name == name:
            return one
    raise UsageError(f"unknown format {name!r}", f"Formats: {', '.join(one.name for one in FORMATS)}.")


def writer_of(name: str) -> Callable[[Scene, Path], None]:
    """What writes a scene in a format; writers are imported when they are used."""
    if name == "xspace":
        from gpudiag.exporting.xspace import write_xspace as write
    elif name == "chrome":
        from gpudiag.exporting.chrome import write_chrome as write
    elif name == "perfetto":
        from gpudiag.exporting.perfetto import write_perfetto as write
    elif name == "csv":
        from gpudiag.exporting.table import write_csv as write
    else:
        raise ValueError(f"no writer for {name}")
    return write
