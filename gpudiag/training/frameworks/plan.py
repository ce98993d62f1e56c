"""What to start: how many processes of which job, where."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpudiag.model.job import Job
from gpudiag.model.structs import msgspec

if TYPE_CHECKING:
    from gpudiag.model.benchmarks.launch_request import ProgramPlan


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One launch on this node.

    Attributes:
        job: what each process trains, and how the run was asked for.
        run_dir: where records, traces and logs go; made if it is not there.
        processes: training processes on this node.
        threads: CPU threads for each of them, unless OMP_NUM_THREADS says otherwise.
        program: one of gpudiag's own training programs; None to train the job's workload.
    """

    job: Job
    run_dir: Path
    processes: int
    threads: int
    program: ProgramPlan | None = None

    @property
    def world_size(self) -> int:
        """Training processes in the whole job."""
        return self.job.nodes * self.processes

    @property
    def ranks(self) -> int:
        """Devices in the whole job; each is a rank in its records."""
        return self.world_size * self.job.devices

    @property
    def leads(self) -> bool:
        """Is it known before the start that this node has rank 0? Of torchrun's backends only `static` says so."""
        meeting = self.job.rendezvous
        return self.job.nodes == 1 or (meeting is not None and meeting.backend == "static" and meeting.node_rank == 0)
