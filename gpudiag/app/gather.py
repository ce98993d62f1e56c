"""`gpudiag gather`: copy the ranks that other nodes recorded into one run directory."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from gpudiag.errors import GpudiagError, UnreadableInputError
from gpudiag.model.run import RANK_SCHEMA, RUN_SCHEMA, RankRecord, RunRecord
from gpudiag.model.run_directory import ANALYSIS_FILE, RUN_FILE, below, digest_file_name, read_json, whole_file
from gpudiag.model.sanitize import one_line
from gpudiag.model.source_lines.log import MAX_LOG_BYTES, logs_of_rank, read_log_origins
from gpudiag.training.session.record import RANKS_DIR, write_rank, write_run

#: Paths of traces in a run directory. Other paths in a record are ignored.
_TRACE = re.compile(r"traces/(light/)?rank\d{1,7}\.(pt\.trace\.json|xplane\.pb)\.gz", re.ASCII)
_FIRST_HINT = "Give the run directory of rank 0's node first; only that directory has the file."
_HINT = "Copy the other node's run directory here, and give it after that of rank 0's node."


def gather(run_dir: Path, others: Sequence[Path], *, digests: bool = False) -> RunRecord:
    """Copy records, traces and source-line logs of other nodes' ranks into rank 0's run directory. Return the run.

    If a rank has no traces, its digest is copied. Ranks that `run_dir` already has are not replaced, so the command may
    be repeated. An older analysis is removed.

    Args:
        run_dir: the run directory of rank 0's node, with `run.json`.
        others: run directories of the other nodes of the same run.
        digests: copy the digests of ranks instead of their traces, if they have digests.
    """
    if not (run_dir / RUN_FILE).is_file():
        missing = f"holds no {RUN_FILE}" if run_dir.exists() else "does not exist"
        raise UnreadableInputError(f"{one_line(str(run_dir))}: {missing}", _FIRST_HINT)
    run = read_json(run_dir / RUN_FILE, RunRecord, RUN_SCHEMA)
    ranks = {rank.rank: rank for rank in run.ranks}
    try:
        for other in others:
            logs = read_log_origins(other)
            for rank in _ranks_of(run, other):
                if rank.rank in ranks:
                    continue
                traces = [*filter(_TRACE.fullmatch, filter(None, (rank.trace, rank.light_trace)))]
                digest = digest_file_name(rank.rank)
                if not (digests and _is_file(other / digest)) and any(_is_file(other / name) for name in traces):
                    for name in traces:
                        _copy(other, run_dir, name)
                else:
                    _copy(other, run_dir, digest)
                for name, target in logs_of_rank(logs, rank.rank).items():
                    _copy(other, run_dir, name, target, max_bytes=MAX_LOG_BYTES)
                below(run_dir, RANKS_DIR)  # refuses a link
                write_rank(run_dir, rank)
                ranks[rank.rank] = rank
        # If a rank of another node failed, the run failed.
        failed = next((rank for _, rank in sorted(ranks.items()) if rank.error is not None), None)
        if failed is not None and run.error is None:
            run = msgspec.structs.replace(run, status="failed", error=f"rank {failed.rank}: {failed.error}")
        whole = msgspec.structs.replace(run, ranks=tuple(ranks[rank] for rank in sorted(ranks)))
        write_run(run_dir, whole)
        (run_dir / ANALYSIS_FILE).unlink(missing_ok=True)
    except OSError as error:
        message = f"cannot gather into {run_dir}: {error.strerror or error}"
        raise GpudiagError(message, "Check its permissions.") from error
    return whole


def _ranks_of(run: RunRecord, other: Path) -> list[RankRecord]:
    """Return the records of this run's ranks in another node's directory; raise UnreadableInputError if it has none."""
    name = one_line(str(other))
    records = list(_records(other))
    if not records:
        missing = "holds no records of ranks" if other.exists() else "does not exist"
        raise UnreadableInputError(f"{name}: {missing}", _HINT)
    # A record with an empty run id belongs to no run.
    ranks = [rank for rank in records if rank.run_id == run.run_id and run.run_id and rank.rank < run.world_size]
    if not ranks:
        raise UnreadableInputError(f"{name}: its ranks are of another run", _HINT)
    return ranks


def _records(other: Path) -> Iterator[RankRecord]:
    """Yield the readable records of ranks in a run directory."""
    with contextlib.suppress(OSError):
        for path in sorted((other / RANKS_DIR).glob("rank*.json")):
            with contextlib.suppress(UnreadableInputError):
                yield read_json(path, RankRecord, RANK_SCHEMA)


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _copy(other: Path, run_dir: Path, name: str, target_name: str = "", *, max_bytes: int = 0) -> None:
    """Copy the file `name` atomically, to `target_name` if given.

    Skip a missing file, a link, and, if `max_bytes` is given, a larger file.
    """
    source = other / name
    if not _is_file(source) or 0 < max_bytes < source.stat().st_size:
        return
    target = below(run_dir, target_name or name)
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as data, whole_file(target) as file:
        shutil.copyfileobj(data, file)
