"""What a format says of itself: its name, the ending of its files, what opens them, and how it is written."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpudiag.model.run_directory import write_output
from gpudiag.report.export.model import ExportModel


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """One format; each module in `formats/` has one as `FORMAT`."""

    name: str
    ending: str
    opens: str
    encode: Callable[[ExportModel], bytes]

    def write(self, exported: ExportModel, path: Path) -> None:
        """Write it as `write_output` does, gzipped where the name ends in `.gz`."""
        data = self.encode(exported)
        write_output(path, gzip.compress(data, 6, mtime=0) if path.suffix == ".gz" else data)
