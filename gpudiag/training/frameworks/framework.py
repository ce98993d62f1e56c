"""A framework as seen by programs that start its processes and never import it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from gpudiag.model.job import MEMORY_FORMATS, Job, MemoryFormat, RunOptions
from gpudiag.model.structs import msgspec

if TYPE_CHECKING:
    from gpudiag.model.benchmarks.launch_request import ProgramPlan

#: The module that each training process runs.
_WORKER = "gpudiag.training.jobs"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A launch on this node.

    Attributes:
        job: the training of each process, and how the run was asked for.
        run_dir: directory for records, traces and logs; made if it does not exist.
        processes: training processes on this node.
        threads: CPU threads of each, unless OMP_NUM_THREADS says otherwise.
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
    def has_rank_0(self) -> bool:
        """Return whether this node is known to have rank 0, which only torchrun's backend `static` determines."""
        meeting = self.job.rendezvous
        return self.job.nodes == 1 or (meeting is not None and meeting.backend == "static" and meeting.node_rank == 0)


class Framework(ABC):
    """A framework. Its `runtime` module has the `RUNTIME` that its training processes use.

    Attributes:
        name: in records and traces; also its folder.
        package: the imported package; also on the command line, among versions, and as gpudiag's extra.
        title: the name for people.
        question: Python source, run in the interpreter that is to train, which sets `answer["framework"]` to its
            version, `answer["cuda"]` to the version of CUDA that it was built for, and `answer["lacks"]` to a missing
            dependency. It can call `has(module)`, its import spec, and `text(folder, file)`, a file's text or "".
        memory_format: the default.
        cpu_memory_formats: those in which it can train on CPUs.
        one_process: by default one process drives all devices of a user's own program.
        shares_launches: jobs can follow each other in the same processes, on any of the devices.
        entry: `module:function` that each training process calls before it trains; "" for none.
        trainer: `module:function` that trains a built-in workload in each process, given the job.
        fault_job: `module:function` that runs a `SelftestPlan` in each process.
        fault_kinds: kinds of the selftest's faults that this program can inject.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    title: ClassVar[str]
    question: ClassVar[str]
    memory_format: ClassVar[MemoryFormat]
    cpu_memory_formats: ClassVar[tuple[str, ...]] = MEMORY_FORMATS
    one_process: ClassVar[bool] = False
    shares_launches: ClassVar[bool] = False
    entry: ClassVar[str] = ""
    trainer: ClassVar[str]
    fault_job: ClassVar[str]
    fault_kinds: ClassVar[frozenset[str]]

    def check(self, options: RunOptions) -> None:  # noqa: ARG002 # refuses nothing
        """Refuse, with a UsageError, options that gpudiag's jobs do not have in this framework."""
        return

    @abstractmethod
    def command_line(self, plan: Plan, request: Path) -> list[str]:
        """Return the command that starts all training processes of this node, and ends when they have.

        Args:
            plan: the launch.
            request: the file from which each process reads its `LaunchRequest`.
        """

    @abstractmethod
    def set_environment(self, values: dict[str, str], plan: Plan, private: Path) -> None:
        """Add variables that the framework's processes need; `private` is removed with the launch."""

    def worker(self, plan: Plan, request: Path) -> list[str]:
        """Return the interpreter's arguments in each training process."""
        # -P: no module is imported from the current directory, except a function that the user named.
        return ["-P", "-m", _WORKER, str(plan.run_dir.resolve()), str(request)]
