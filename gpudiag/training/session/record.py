"""Write and read files of a run directory: the records of the ranks and of the run, and compressed traces."""

from __future__ import annotations

import contextlib
import gzip
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpudiag.model.run import RANK_SCHEMA, RUN_SCHEMA, RankRecord, RunRecord
from gpudiag.model.run_directory import (
    ANALYSIS_FILE,
    DIGEST_ENDING,
    DIGESTS_DIR,
    KERNEL_ONLY_TRACES,
    LINES_DIR,
    RUN_FILE,
    TRACES_DIR,
    digest_file_name,
    readable_json,
    write_json,
)
from gpudiag.model.structs import msgspec

RANKS_DIR = "ranks"
LOGS_DIR = "logs"
#: File that asks DataLoader workers to time lines, see `frameworks.pytorch.dataloader`.
_LINES_REQUEST = "request"
#: A rank in a file name has fewer digits than this.
_MAX_DIGITS = 12
_TRACE_ENDINGS = (".pt.trace.json.gz", ".xplane.pb.gz")

#: zlib level of a saved trace. The best level saves at most 10 % of the size, and takes several times as long.
_GZIP_LEVEL = 3
_CHUNK_BYTES = 1 << 20
#: Maximum length of a match that `contains` finds.
_OVERLAP_BYTES = 64


def rank_file(run_dir: Path, rank: int) -> Path:
    """Return the path of this rank's record."""
    return run_dir / RANKS_DIR / f"rank{rank}.json"


def lines_file(run_dir: Path, rank: int) -> Path:
    """Return the path of a process's log of source lines. `rank` is the rank of the process's first device."""
    return run_dir / LINES_DIR / f"rank{rank}.json.gz"


def trace_name(rank: int) -> str:
    """Return the path of this rank's full trace, relative to the run directory."""
    return f"{TRACES_DIR}/rank{rank}.pt.trace.json.gz"


def tensorflow_trace_name(rank: int) -> str:
    """Return the path of a TensorFlow process's full trace. `rank` is the rank of the process's first device."""
    return f"{TRACES_DIR}/rank{rank}.xplane.pb.gz"


def kernel_only_trace_name(trace: str) -> str:
    """Return the path of the kernel-only trace that belongs to a full trace: the same name in `traces/light/`."""
    return f"{TRACES_DIR}/{KERNEL_ONLY_TRACES}/{trace.rpartition('/')[2]}"


def clear_rank(run_dir: Path, rank: int) -> None:
    """Remove this rank's files of an earlier run."""
    rank_file(run_dir, rank).unlink(missing_ok=True)
    lines_file(run_dir, rank).unlink(missing_ok=True)
    for trace in (trace_name(rank), tensorflow_trace_name(rank)):
        for path in (trace, kernel_only_trace_name(trace)):
            (run_dir / path).unlink(missing_ok=True)
    (run_dir / digest_file_name(rank)).unlink(missing_ok=True)


def clear_run(run_dir: Path, world_size: int) -> None:
    """Remove an earlier run's record, analysis and worker logs, and the files of ranks from `world_size` on."""
    for name in (RUN_FILE, ANALYSIS_FILE):
        (run_dir / name).unlink(missing_ok=True)
    clear_worker_lines(run_dir)
    folders = (TRACES_DIR, f"{TRACES_DIR}/{KERNEL_ONLY_TRACES}")
    traces = [(folder, ending) for folder in folders for ending in _TRACE_ENDINGS]
    for folder, ending in (
        (RANKS_DIR, ".json"),
        (LINES_DIR, ".json.gz"),
        *traces,
        (LOGS_DIR, ".log"),
        (DIGESTS_DIR, DIGEST_ENDING),
    ):
        for path in (run_dir / folder).glob(f"rank*{ending}"):
            number = path.name.removeprefix("rank").removesuffix(ending)
            if number.isdecimal() and int(number) >= world_size:
                path.unlink(missing_ok=True)


def clear_worker_lines(run_dir: Path) -> None:
    """Remove the logs of source lines by DataLoader workers of an earlier run, and the file that requests such logs."""
    folder = run_dir / LINES_DIR
    for path in (folder / _LINES_REQUEST, *folder.glob("worker*.json.gz"), *folder.glob(".*.json.gz.new")):
        path.unlink(missing_ok=True)


def write_rank(run_dir: Path, record: RankRecord) -> None:
    """Save one rank's record."""
    path = rank_file(run_dir, record.rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, record)


def read_ranks(run_dir: Path, world_size: int | None = None, run_id: str | None = None) -> tuple[RankRecord, ...]:
    """Return the readable records of the ranks below `world_size` (None: of all ranks), sorted by rank.

    With `run_id`, return only records of this run and of ranks that have not received a run id yet.
    """
    # Iterate over the existing files, because RANK and WORLD_SIZE may be in the millions.
    names = (path.name.removeprefix("rank").removesuffix(".json") for path in (run_dir / RANKS_DIR).glob("rank*.json"))
    ranks = sorted(int(name) for name in names if name.isascii() and name.isdecimal() and len(name) < _MAX_DIGITS)
    records = (
        readable_json(rank_file(run_dir, rank), RankRecord, RANK_SCHEMA)
        for rank in ranks
        if world_size is None or rank < world_size
    )
    return tuple(
        record for record in records if record is not None and (run_id is None or record.run_id in {"", run_id})
    )


def write_run(run_dir: Path, record: RunRecord) -> None:
    """Save the run's record."""
    run_dir.mkdir(parents=True, exist_ok=True)
    write_json(run_dir / RUN_FILE, record)


def final_run(run_dir: Path, default: RunRecord, **changes: Any) -> RunRecord:
    """Return the run's record that rank 0 wrote (else `default`), with the fields in `changes` replaced."""
    run = readable_json(run_dir / RUN_FILE, RunRecord, RUN_SCHEMA) or default
    return msgspec.structs.replace(run, **changes)


def print_next_command(run_dir: Path) -> None:
    """Print the measured step time and the next command on standard error. If no step was timed, print nothing."""
    run = readable_json(run_dir / RUN_FILE, RunRecord, RUN_SCHEMA)
    if run is None or sys.stderr is None:
        return
    measured = [rank.unprofiled for rank in run.ranks if rank.unprofiled is not None]
    if not measured:
        return
    slowest = max(measured, key=lambda times: times.mean_ms)
    path = shlex.quote(str(run_dir))
    ranks = f"{len(measured)} rank{'s' * (len(measured) != 1)}"
    timed = f"timed {len(slowest.step_ms)} steps of {slowest.mean_ms:.1f} ms"
    lines = [f"gpudiag: {timed} on {ranks}; the run is in {path}"]
    if len(run.ranks) < run.world_size:
        lines.append(
            f"  the other nodes' ranks are in their own {path}: copy it here, then gpudiag gather {path} THEIRS"
        )
    lines.append(f"  next: gpudiag analyze {path}")
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()


def compress(plain: Path, target: Path) -> None:
    """Compress the file `plain` to `target`; raise OSError if a file cannot be read or written."""
    with plain.open("rb") as source, gzip.open(target, "wb", compresslevel=_GZIP_LEVEL) as written:
        shutil.copyfileobj(source, written, _CHUNK_BYTES)


def export_compressed(
    export: Callable[[str], object], target: Path, *, examine: Callable[[Path], object] | None = None
) -> None:
    """Write a trace to a temporary file, and compress it to `target`, which appears only when it is complete.

    Args:
        export: function that writes the trace to a path.
        target: path `*.json.gz`. Missing directories are made.
        examine: called with the uncompressed temporary file, which is faster to read; None to examine nothing.

    Raises:
        OSError: a file cannot be written. All files of the trace are removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    compressed = target.with_name(f".{target.name}.part")
    plain = target.with_name(f".{target.name}.json")
    try:
        export(str(plain))
        if examine is not None:
            examine(plain)
        compress(plain, compressed)
        compressed.replace(target)
    finally:
        # If the disk is full, the profiler leaves a file `*.tmp`.
        for leftover in (plain, plain.with_name(f"{plain.name}.tmp"), compressed):
            with contextlib.suppress(OSError):
                leftover.unlink()


def contains(path: Path, pattern: bytes) -> bool:
    """Return whether a pattern that matches at most 64 bytes occurs in the file. The file is read in chunks."""
    expression = re.compile(pattern)
    last = b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            if expression.search(last + chunk):  # a match may begin in the previous chunk
                return True
            last = chunk[-_OVERLAP_BYTES:]
    return False
