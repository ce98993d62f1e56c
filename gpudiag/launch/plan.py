"""What to start: how many processes, with which interpreter, where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from gpudiag.model.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """How several nodes find each other; the meaning is torchrun's (`--rdzv-backend`, `--rdzv-endpoint`, ...)."""

    endpoint: str
    backend: str = "c10d"
    node_rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One launch on this node.

    Attributes:
        job: what each process trains.
        run_dir: where records, traces and logs go; made if it is not there.
        processes: training processes on this node.
        threads: CPU threads for each of them, unless OMP_NUM_THREADS says otherwise.
        python: the interpreter of the training processes.
        command: the user's command line, for the record.
        nodes: nodes in the job.
        rendezvous: needed when there is more than one node.
        timeout_s: how long a process may show no progress before the run counts as hung.
    """

    job: Job
    run_dir: Path
    processes: int
    threads: int
    python: str
    command: tuple[str, ...]
    nodes: int = 1
    rendezvous: Rendezvous | None = None
    timeout_s: float = 600.0

    @property
    def world_size(self) -> int:
        """Training processes in the whole job."""
        return self.nodes * self.processes

    @property
    def ranks(self) -> int:
        """Devices in the whole job; each is a rank in its records."""
        return self.world_size * self.job.devices

    @property
    def leads(self) -> bool:
        """Is it known before the start that this node has rank 0? Of torchrun's backends only `static` says so."""
        meeting = self.rendezvous
        return self.nodes == 1 or (meeting is not None and meeting.backend == "static" and meeting.node_rank == 0)
