"""A scene as CSV: one row per event, for a notebook or a spreadsheet."""

from __future__ import annotations

import csv
import gzip
import io
from typing import TYPE_CHECKING

from gpudiag.model.event import NO_CORRELATION, NO_SIZE, EventKind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpudiag.exporting.scene import Scene, Track

COLUMNS = ("rank", "device", "line", "kind", "name", "start_ns", "duration_ns", "correlation", "bytes")
_OWN = "gpudiag"
#: A spreadsheet takes text that begins with one of these for a formula, and runs it.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_csv(scene: Scene, path: Path) -> None:
    """Write it to a file, gzipped where its name ends in `.gz`. Unknown values are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for group in scene.groups:
        rank = " ".join(str(one) for one in group.ranks)
        device = "" if group.device is None else group.device
        for track in group.tracks:
            writer.writerows((rank, device, _plain(track.title), *row) for row in _rows(track))
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data, 6, mtime=0) if path.suffix == ".gz" else data)


def _rows(track: Track) -> Iterator[tuple[str, str, int, int, int | str, int | str]]:
    count = len(track)
    kinds = (
        [_OWN] * count if track.event_kind is None else [EventKind(k).name.lower() for k in track.event_kind.tolist()]
    )
    calls = [NO_CORRELATION] * count if track.correlation is None else track.correlation.tolist()
    sizes = [NO_SIZE] * count if track.size_bytes is None else track.size_bytes.tolist()
    for (start, end, name), kind, call, size in zip(track.rows(), kinds, calls, sizes, strict=True):
        told = "" if call == NO_CORRELATION else call, "" if size == NO_SIZE else size
        yield kind, _plain(name), start, end - start, *told


def _plain(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text
