"""Write CSV with one row per event, for a notebook or a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from gpudiag.model.event import NO_CORRELATION, NO_SIZE, EventKind
from gpudiag.model.sanitize import not_a_formula, printable
from gpudiag.report.export.formats import Format
from gpudiag.report.export.model import ExportModel, ExportTrack

COLUMNS = ("rank", "device", "line", "kind", "name", "start_ns", "duration_ns", "correlation", "bytes")
_GPUDIAG = "gpudiag"


def encode_csv(exported: ExportModel) -> bytes:
    """Return the file's bytes, printable in a terminal; unknown values are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for group in exported.groups:
        rank = " ".join(map(str, group.ranks))
        device = "" if group.device is None else group.device
        for track in group.tracks:
            writer.writerows((rank, device, not_a_formula(printable(track.title)), *row) for row in _rows(track))
    return text.getvalue().encode()


def _rows(track: ExportTrack) -> Iterator[tuple[str, str, int, int, int | str, int | str]]:
    """Yield the values of `COLUMNS` from `kind` on for each event; unknown numbers are ""."""
    count = len(track)
    kinds = (
        [_GPUDIAG] * count
        if track.event_kind is None
        else [EventKind(k).name.lower() for k in track.event_kind.tolist()]
    )
    calls = [NO_CORRELATION] * count if track.correlation is None else track.correlation.tolist()
    sizes = [NO_SIZE] * count if track.size_bytes is None else track.size_bytes.tolist()
    names = {name: not_a_formula(printable(name)) for name in track.names}
    for (start, end, name), kind, call, size in zip(track.rows(), kinds, calls, sizes, strict=True):
        known = "" if call == NO_CORRELATION else call, "" if size == NO_SIZE else size
        yield kind, names[name], start, end - start, *known


FORMAT = Format(name="csv", ending=".csv", opens="a notebook or a spreadsheet", encode=encode_csv)
