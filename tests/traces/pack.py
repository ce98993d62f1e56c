"""Pack the full recording of one job into a single small file, and unpack it.

    python -m tests.traces.pack pack DIRECTORY_OR_TRACE TARGET.npz
    python -m tests.traces.pack unpack SOURCE.npz DIRECTORY

All content that gpudiag reads is kept, so `gpudiag analyze --json` of the unpacked files is identical to that of the
recording. Phases other than X (arrows, instants, names of processes) are removed, as are arguments and headers that no
reader reads.

Events of all ranks become columns: an index into a list of distinct events without times, the start minus the previous
start in ns, the duration, and the correlation minus the previous correlation. The columns are members of a NumPy
archive, each compressed with LZMA, which takes a seventh of the gzip-compressed JSON. Events are sorted by thread,
because neighbours in one thread are most similar; readers sort events by time.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import zipfile
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.traces.minify import header_of, read_arguments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_WRITTEN = (1980, 1, 1, 0, 0, 0)  # a constant time, so that equal recordings give equal files


def _in_order(event: dict[str, Any]) -> tuple[str, str, Decimal]:
    return event["cat"], str(event["tid"]), event["ts"]


def _nanoseconds(microseconds: Decimal | int) -> int:
    ns = Decimal(microseconds) * 1000
    if ns != int(ns):
        raise ValueError(f"{microseconds} is no whole number of nanoseconds")
    return int(ns)


def _differences(values: list[int]) -> NDArray[np.int64]:
    """Return each number minus the previous one, and the first number unchanged."""
    column = np.array(values, dtype=np.int64)
    column[1:] -= column[:-1].copy()
    return column


def pack(source: Path, target: Path) -> None:
    """Pack the traces `*.json.gz` of a directory, or one trace."""
    files: list[dict[str, Any]] = []
    texts: dict[str, int] = {}
    columns: dict[str, list[int]] = {"event": [], "start_ns": [], "duration_ns": [], "correlation": []}
    for path in sorted(source.glob("*.json.gz")) if source.is_dir() else [source]:
        document = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
        events = sorted((event for event in document["traceEvents"] if event.get("ph") == "X"), key=_in_order)
        files.append({"name": path.name, "events": len(events), "header": header_of(document)})
        for event in events:
            arguments = read_arguments(event)
            if "correlation" in arguments:
                columns["correlation"].append(arguments["correlation"])
                arguments["correlation"] = None  # `unpack` inserts the number
            fixed = {key: event[key] for key in ("ph", "cat", "name", "pid", "tid")} | {"args": arguments}
            text = json.dumps(fixed, separators=(",", ":"), default=float)
            columns["event"].append(texts.setdefault(text, len(texts)))
            columns["start_ns"].append(_nanoseconds(event["ts"]))
            columns["duration_ns"].append(_nanoseconds(event["dur"]))
    members: dict[str, NDArray[np.integer[Any]]] = {
        "event": np.array(columns["event"], dtype=np.int32),
        "start_ns": _differences(columns["start_ns"]),
        "duration_ns": np.array(columns["duration_ns"], dtype=np.int64),
        "correlation": _differences(columns["correlation"]),
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_LZMA) as archive:
        about = json.dumps({"files": files, "events": [json.loads(text) for text in texts]}, default=float)
        _add(archive, "about.json", about.encode())
        for name, values in members.items():
            # The first bytes of all numbers come first, then the second bytes, and so on, so that bytes that are always
            # 0 compress well.
            planes = np.ascontiguousarray(values.view(np.uint8).reshape(len(values), values.itemsize).T)
            content = io.BytesIO()
            np.save(content, planes)
            _add(archive, f"{name}.npy", content.getvalue())


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    member = zipfile.ZipInfo(name, _WRITTEN)
    member.compress_type = zipfile.ZIP_LZMA
    archive.writestr(member, content)


def unpack(source: Path, directory: Path) -> None:
    """Write the traces of a packed recording into a directory, under their original names."""
    with zipfile.ZipFile(source) as archive:
        about = json.loads(archive.read("about.json"))
        event, duration_ns = _column(archive, "event", np.int32), _column(archive, "duration_ns", np.int64)
        start_ns = np.cumsum(_column(archive, "start_ns", np.int64))
        correlation = iter(np.cumsum(_column(archive, "correlation", np.int64)).tolist())
    # The closing brace is removed, so that times can be appended.
    texts = [json.dumps(each, separators=(",", ":"))[:-1] for each in about["events"]]
    rows = zip(event.tolist(), start_ns.tolist(), duration_ns.tolist(), strict=True)
    directory.mkdir(parents=True, exist_ok=True)
    for file in about["files"]:
        head = json.dumps(file["header"], separators=(",", ":"))[:-1]
        events = ",\n".join(_texts(rows, file["events"], texts, correlation))
        with gzip.open(directory / file["name"], "wt", compresslevel=1, encoding="utf-8") as target:
            target.write(f'{head},"traceEvents":[{events}]}}')


def _column(archive: zipfile.ZipFile, name: str, kind: type[np.integer[Any]]) -> NDArray[Any]:
    planes = np.load(io.BytesIO(archive.read(f"{name}.npy")))
    return np.ascontiguousarray(planes.T).view(kind).ravel()


def _texts(
    rows: Iterator[tuple[int, int, int]], count: int, texts: list[str], correlation: Iterator[int]
) -> Iterator[str]:
    """Yield the JSON text of the next `count` events, with their times and correlations.

    `zip` asks `range` first, so that it does not take an event of the next file.
    """
    for _, (event, start, duration) in zip(range(count), rows, strict=False):
        text = texts[event]
        if '"correlation":null' in text:
            text = text.replace('"correlation":null', f'"correlation":{next(correlation)}')
        yield (f'{text},"ts":{start // 1000}.{start % 1000:03d},"dur":{duration // 1000}.{duration % 1000:03d}}}')


if __name__ == "__main__":
    _, verb, given, wanted = sys.argv
    {"pack": pack, "unpack": unpack}[verb](Path(given), Path(wanted))
