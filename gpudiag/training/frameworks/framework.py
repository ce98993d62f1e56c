"""A framework as those programs see it that start its processes and never import it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from gpudiag.model.job import MEMORY_FORMATS, MemoryFormat, RunOptions
from gpudiag.training.frameworks.plan import Plan

#: What runs in each training process, whichever the framework.
_WORKER = "gpudiag.training.jobs"


class Framework(ABC):
    """One framework. Its `runtime` module, beside it, has the `RUNTIME` that works in its training processes.

    Attributes:
        name: in records and traces; the name of its folder too.
        package: what a program imports; as on the command line, among versions, and as gpudiag's extra.
        title: in people's words.
        question: Python source, run in the interpreter that is to train, which sets `answer["framework"]` to its
            version and `answer["cuda"]` to CUDA's that it was built for, and `answer["lacks"]` to what is missing
            beside it. There are `has(module)`, its import spec, and `text(folder, file)`, a file's text or "".
        memory_format: unless told.
        cpu_memory_formats: those in which it can train on CPUs.
        one_process: one process drives all devices of a user's own program unless told otherwise.
        shares_launches: jobs can follow each other in the same processes, on any of the devices.
        entry: `module:function` that each training process calls before it trains; "" for none.
        trainer: `module:function` that trains a built-in workload in each process, given the job.
        fault_job: `module:function` that runs a `SelftestPlan` in each process.
        fault_kinds: kinds of the selftest's faults that this program can put in.
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

    def check(self, options: RunOptions) -> None:  # noqa: ARG002  # nothing is refused
        """Refuse, with a UsageError, what of a run's options gpudiag's jobs do not have in this framework."""
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
        """Add what its processes need to their environment.

        Args:
            values: the environment, with all in it that holds for any framework.
            plan: the launch.
            private: a directory of this launch, removed with it.
        """

    def worker(self, plan: Plan, request: Path) -> list[str]:
        """Return the interpreter's arguments in each training process."""
        # -P: nothing is imported from the current directory except a function that the user named.
        return ["-P", "-m", _WORKER, str(plan.run_dir.resolve()), str(request)]
