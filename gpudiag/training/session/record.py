"""The run's record on disk: one file per rank, written whole at every change, and merged into `run.json`."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gpudiag.errors import UnreadableInputError
from gpudiag.model.run import RANK_SCHEMA, RankRecord, RunRecord
from gpudiag.model.run_directory import ANALYSIS_FILE, KERNEL_ONLY_TRACES, RUN_FILE, TRACES_DIR, read_json, write_json

RANKS_DIR = "ranks"
LOGS_DIR = "logs"
_MOST_DIGITS = 12


def rank_file(run_dir: Path, rank: int) -> Path:
    """Where this rank's record is."""
    return run_dir / RANKS_DIR / f"rank{rank}.json"


def trace_name(rank: int) -> str:
    """This rank's trace, relative to the run directory."""
    return f"{TRACES_DIR}/rank{rank}.pt.trace.json.gz"


def tensorflow_trace_name(rank: int) -> str:
    """The trace of the TensorFlow process whose first device has this rank, relative to the run directory."""
    return f"{TRACES_DIR}/rank{rank}.xplane.pb.gz"


def kernel_only_trace_name(trace: str) -> str:
    """The light recording beside a full one: `traces/light/` and the same name."""
    return f"{TRACES_DIR}/{KERNEL_ONLY_TRACES}/{trace.rpartition('/')[2]}"


def clear_rank(run_dir: Path, rank: int) -> None:
    """Remove what an earlier run left of this rank."""
    rank_file(run_dir, rank).unlink(missing_ok=True)
    for trace in (trace_name(rank), tensorflow_trace_name(rank)):
        for stale in (trace, kernel_only_trace_name(trace)):
            (run_dir / stale).unlink(missing_ok=True)


def clear_run(run_dir: Path, world_size: int) -> None:
    """Remove what an earlier run left of the run as a whole, and of ranks that this one does not have."""
    for name in (RUN_FILE, ANALYSIS_FILE):
        (run_dir / name).unlink(missing_ok=True)
    folders = (TRACES_DIR, f"{TRACES_DIR}/{KERNEL_ONLY_TRACES}")
    traces = [(folder, ending) for folder in folders for ending in (".pt.trace.json.gz", ".xplane.pb.gz")]
    for folder, ending in ((RANKS_DIR, ".json"), *traces, (LOGS_DIR, ".log")):
        for path in (run_dir / folder).glob(f"rank*{ending}"):
            number = path.name.removeprefix("rank").removesuffix(ending)
            if number.isdecimal() and int(number) >= world_size:
                path.unlink(missing_ok=True)


def write_rank(run_dir: Path, record: RankRecord) -> None:
    """Save one rank's record."""
    path = rank_file(run_dir, record.rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, record)


def read_ranks(run_dir: Path, world_size: int, run_id: str | None = None) -> tuple[RankRecord, ...]:
    """The readable records that there are of ranks below `world_size`, by rank; of this run alone, where it is told."""
    # By the files that there are: RANK and WORLD_SIZE may say millions.
    names = (path.name.removeprefix("rank").removesuffix(".json") for path in (run_dir / RANKS_DIR).glob("rank*.json"))
    ranks = sorted(int(name) for name in names if name.isascii() and name.isdecimal() and len(name) < _MOST_DIGITS)
    found = []
    for rank in ranks:
        if rank < world_size:
            with contextlib.suppress(UnreadableInputError):
                found.append(read_json(rank_file(run_dir, rank), RankRecord, RANK_SCHEMA))
    return tuple(one for one in found if run_id is None or one.run_id in {"", run_id})


def write_run(run_dir: Path, record: RunRecord) -> None:
    """Save the run's record."""
    run_dir.mkdir(parents=True, exist_ok=True)
    write_json(run_dir / RUN_FILE, record)
