"""Read facts about a capture: host, GPUs, start time, versions, MPI ranks, and problems that nsys reported."""

from __future__ import annotations

import msgspec

from gpudiag.model.quantities import MOST_RANKS
from gpudiag.model.sanitize import with_escapes
from gpudiag.trace.readers.nsys.database import MISSING, Database

#: Severity from which nsys's messages are problems: warnings and errors.
_WARNING = 2
_MOST_MESSAGES = 3
_LONGEST_MESSAGE = 200
_MOST_ROWS = 100_000
#: Bits below the process in a global thread id, and mask of the process id in a global id without these bits.
_THREAD_BITS = 24
_PROCESS = (1 << 24) - 1


class CaptureFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a capture.

    Attributes:
        host: host name, or "".
        begun_ns: absolute time (Unix, ns) of the timestamps' zero; 0 if unknown.
        gpu_names: the machine's number of a GPU → model.
        gpu_of: (process id, the process's device ordinal) → the machine's number of the GPU.
        mpi_ranks: global process id without thread bits → MPI rank.
        problems: messages of nsys about lost or incomplete data.
    """

    host: str = ""
    begun_ns: int = 0
    gpu_names: dict[int, str] = {}
    gpu_of: dict[tuple[int, int], int] = {}
    mpi_ranks: dict[int, int] = {}
    problems: tuple[str, ...] = ()

    def gpu(self, process: int, device: int) -> int:
        """Return the machine's number of a process's GPU; the process's device ordinal if unknown.

        `process` is the global process id without thread bits, here and in `gpu_name`.
        """
        return self.gpu_of.get((process & _PROCESS, device), device)

    def gpu_name(self, process: int, device: int) -> str:
        """Return the model of a process's device; if unknown, the model that all GPUs have, or "" if models differ."""
        models = set(self.gpu_names.values())
        return self.gpu_names.get(self.gpu(process, device)) or (models.pop() if len(models) == 1 else "")


def read_capture(database: Database) -> CaptureFacts:
    """Return the facts of a capture. Missing tables and values of unexpected types are ignored."""
    host = next(
        (value for name, value in database.texts("TARGET_INFO_SYSTEM_ENV", "name", "value") if name == "Hostname"), ""
    )
    begun = _first(database, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
    names = {_number(gpu): with_escapes(name) for gpu, name in database.texts("TARGET_INFO_GPU", "id", "name") if name}
    return CaptureFacts(
        host=with_escapes(host[:200]),
        begun_ns=begun if 0 < begun < 2**62 else 0,
        gpu_names=names,
        gpu_of={
            (process, device): gpu
            for process, device, gpu in _rows(database, "TARGET_INFO_CUDA_DEVICE", "pid", "cudaId", "gpuId")
            if gpu >= 0
        },
        mpi_ranks={
            thread >> _THREAD_BITS: rank
            for thread, rank in _rows(database, "MPI_RANKS", "globalTid", "rank")
            if 0 <= rank < MOST_RANKS
        },
        problems=_problems(database),
    )


def _problems(database: Database) -> tuple[str, ...]:
    messages = database.texts("DIAGNOSTIC_EVENT", "severity", "text", most=_MOST_ROWS)
    serious = dict.fromkeys(text for severity, text in messages if text and _number(severity) >= _WARNING)
    return tuple(f"Nsight Systems: {with_escapes(text[:_LONGEST_MESSAGE])}" for text in list(serious)[:_MOST_MESSAGES])


def _first(database: Database, table: str, column: str) -> int:
    return next((row[0] for row in _rows(database, table, column)), MISSING)


def _rows(database: Database, table: str, *columns: str) -> list[tuple[int, ...]]:
    """Return the rows of a table, at most about the first `_MOST_ROWS`; [] if a column is missing."""
    if not set(columns) <= database.tables.get(table, frozenset()):
        return []
    rows: list[tuple[int, ...]] = []
    for fetched, _ in database.integers(table, dict.fromkeys(columns, MISSING)):
        rows += map(tuple, fetched.tolist())
        if len(rows) > _MOST_ROWS:
            break
    return rows


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 18 else MISSING
