"""Write the formats of `gpudiag export`. Each module defines one format. A new format is a new module with `FORMAT`."""

from __future__ import annotations

import gzip
import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpudiag.errors import UsageError, there_are
from gpudiag.model.run_directory import write_output
from gpudiag.report.export.model import ExportModel


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """A format: its name, the ending of its files, the tools that open these files, and the encoder."""

    name: str
    ending: str
    opens: str
    encode: Callable[[ExportModel], bytes]

    def write(self, exported: ExportModel, path: Path) -> None:
        """Write a file as `write_output` does, gzipped if its name ends in `.gz`."""
        data = self.encode(exported)
        write_output(path, gzip.compress(data, 6, mtime=0) if path.suffix == ".gz" else data)


def formats() -> dict[str, Format]:
    """Return every format by name."""
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    return {module.FORMAT.name: module.FORMAT for module in modules}


def format_named(name: str) -> Format:
    """Return the format of that name.

    Raises:
        UsageError: there is no such format.
    """
    known = formats()
    if name not in known:
        raise UsageError(f"there is no format '{name}'", there_are(name, known))
    return known[name]
