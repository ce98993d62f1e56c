"""Describe a framework for the programs that start training processes. These programs never import the framework."""

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
    """Description of a launch on this node.

    Attributes:
        job: the training of each process, and the user's options for the run.
        run_dir: directory for records, traces and logs; created if it does not exist.
        processes: number of training processes on this node.
        threads: number of CPU threads per process, unless OMP_NUM_THREADS is set.
        program: one of gpudiag's own training programs; None to train the job's workload.
    """

    job: Job
    run_dir: Path
    processes: int
    threads: int
    program: ProgramPlan | None = None

    @property
    def world_size(self) -> int:
        """Number of training processes in the whole job."""
        return self.job.nodes * self.processes

    @property
    def ranks(self) -> int:
        """Number of ranks in the job's records. Each device is a rank, even if one process drives several devices."""
        return self.world_size * self.job.devices

    @property
    def has_rank_0(self) -> bool:
        """True if rank 0 surely runs on this node. With several nodes, only rendezvous `static` fixes its node."""
        meeting = self.job.rendezvous
        return self.job.nodes == 1 or (meeting is not None and meeting.backend == "static" and meeting.node_rank == 0)


class Framework(ABC):
    """Base class of the frameworks. Each framework's module `runtime` has the `RUNTIME` for training processes.

    Attributes:
        name: name of the framework in records and traces, and of its folder.
        package: name of the framework's Python package, which is also the value of `--framework` and gpudiag's extra.
        title: name of the framework in text for users.
        question: Python source that describes the framework in the interpreter of the training. The source sets
            `answer["framework"]` to the framework's version, `answer["cuda"]` to the version of CUDA that the framework
            was built for, and `answer["lacks"]` to a missing dependency. The source can call `has(module)`, which
            returns the module's import spec, and `text(folder, file)`, which returns a file's text or "".
        memory_format: default memory format.
        cpu_memory_formats: memory formats in which the framework can train on CPUs.
        one_process: True if by default one process drives all devices of a user's own program.
        shares_launches: True if the same processes can run several jobs one after another.
        entry: `module:function` that each training process calls before it trains; "" for none.
        trainer: `module:function` that trains a built-in workload in each process, given the job.
        fault_job: `module:function` that runs a `SelftestPlan` (jobs with injected faults) in each process.
        fault_kinds: kinds of faults that `fault_job` can inject.
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

    def check(self, options: RunOptions) -> None:  # noqa: ARG002 # the base class refuses nothing
        """Raise UsageError for options that gpudiag's jobs do not support in this framework."""
        return

    @abstractmethod
    def command_line(self, plan: Plan, request: Path) -> list[str]:
        """Return the command that starts all training processes of this node, and exits when all of them have ended.

        Args:
            plan: description of the launch.
            request: the file from which each process reads its `LaunchRequest`.
        """

    @abstractmethod
    def set_environment(self, values: dict[str, str], plan: Plan, private: Path) -> None:
        """Add the variables of the framework to `values`. The directory `private` is removed after the launch."""

    def worker(self, plan: Plan, request: Path) -> list[str]:
        """Return the arguments of the Python interpreter of each training process."""
        # -P: import no module from the current directory, except the module of a function that the user named.
        return ["-P", "-m", _WORKER, str(plan.run_dir.resolve()), str(request)]
