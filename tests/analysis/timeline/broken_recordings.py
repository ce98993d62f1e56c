"""Damage full recordings in realistic ways; functions with a `target` write a job's traces to that directory."""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_CATEGORY = re.compile(r'"cat":"([^"]*)"')


def named(directory: Path, rank: int) -> Path:
    """Return the path of a rank's trace in a directory."""
    return directory / f"rank{rank}.pt.trace.json.gz"


def with_ranks_of(first: Path, second: Path, ranks: Sequence[int], target: Path) -> Path:
    """Copy the traces of the run `first`, but those of `ranks` from the run `second`."""
    for source in sorted(first.glob("rank*")):
        of = second if any(source == named(first, rank) for rank in ranks) else first
        (target / source.name).write_bytes((of / source.name).read_bytes())
    return target


def without_rank(source: Path, rank: int, target: Path) -> Path:
    """Copy the traces of all ranks except one."""
    for path in sorted(source.glob("rank*")):
        if path != named(source, rank):
            (target / path.name).write_bytes(path.read_bytes())
    return target


def with_rank_twice(source: Path, rank: int, instead_of: int, target: Path, *, says: int) -> Path:
    """Replace the trace of rank `instead_of` by the trace of `rank`, with a header that says rank `says`."""
    without_rank(source, instead_of, target)
    text = gzip.decompress(named(source, rank).read_bytes()).decode()
    head, events = text.split('"traceEvents"', 1)
    head = re.sub(r'"rank":\d+', f'"rank":{says}', head, count=1)
    named(target, instead_of).write_bytes(gzip.compress(f'{head}"traceEvents"{events}'.encode(), 1))
    return target


def with_events(source: Path, target: Path, stays: Callable[[str, str], bool], ranks: Sequence[int]) -> Path:
    """Keep those events of `ranks` for which `stays(category, JSON text)` is true, and all events of other ranks."""
    for path in sorted(source.glob("rank*")):
        if all(path != named(source, rank) for rank in ranks):
            (target / path.name).write_bytes(path.read_bytes())
            continue
        head, events = gzip.decompress(path.read_bytes()).decode().split('"traceEvents":[', 1)
        lines = events.rstrip().removesuffix("]}").split(",\n")  # one event per line
        kept = []
        for line in lines:
            category = _CATEGORY.search(line)
            if stays(category[1] if category else "", line):
                kept.append(line)
        document = f'{head}"traceEvents":[{",".join(kept)}]}}'
        json.loads(document)  # check that the JSON is valid
        (target / path.name).write_bytes(gzip.compress(document.encode(), 1))
    return target


def without_device_work(source: Path, target: Path, ranks: Sequence[int], *, calls: bool = True) -> Path:
    """Remove device work of `ranks`, as if CUPTI had failed; if `calls` is false, remove runtime calls too."""
    gone = {*DEVICE_WORK, "gpu_user_annotation", *(() if calls else ("cuda_runtime", "cuda_driver"))}
    return with_events(source, target, lambda category, _: category not in gone, ranks)


def with_lost_work(source: Path, target: Path, share: float, seed: int = 0) -> Path:
    """Remove a share of the device ops of all ranks at random."""
    draw = np.random.default_rng(seed)
    return with_events(
        source, target, lambda category, _: category not in DEVICE_WORK or draw.random() >= share, range(64)
    )


def say_devices_of_calls(space: Any) -> None:
    """Add to an XSpace, in place, the GPU of each call, which TensorFlow writes but the small recording lacks."""
    device_of: dict[int, int] = {}
    for plane in space.planes:
        names = {ident: entry.name for ident, entry in plane.stat_metadata.items()}
        on_gpu = plane.name.startswith("/device:GPU:")
        ident = max(names, default=0) + 1
        if not on_gpu:
            plane.stat_metadata[ident].name = "device_id"
        for event in (event for line in plane.lines for event in line.events):
            for stat in [stat for stat in event.stats if names[stat.metadata_id] == "correlation_id"]:
                if on_gpu:
                    device_of[stat.uint64_value] = int(plane.name.rpartition(":")[2])
                elif stat.uint64_value in device_of:
                    event.stats.add(metadata_id=ident, uint64_value=device_of[stat.uint64_value])
