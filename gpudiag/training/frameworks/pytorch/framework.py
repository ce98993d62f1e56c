"""Describe PyTorch for programs that start training processes."""

from __future__ import annotations

import getpass
import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import ClassVar

from gpudiag.errors import UsageError
from gpudiag.model.job import MemoryFormat, RunOptions
from gpudiag.training.frameworks.framework import Framework, Plan
from gpudiag.training.session.agreement import STORE_VARIABLE

#: Environment variable with the secret of a job's nodes, which signs the rendezvous state that torchrun unpickles.
SECRET_VARIABLE = "GPUDIAG_SECRET"  # noqa: S105 # the name of a variable
_TORCHRUN = Path(__file__).with_name("torchrun.py")
_STARTER = Path(__file__).parents[1] / "starter.py"

#: Value of `question`. The source reads the file `torch/version.py`, because importing torch takes seconds.
_QUESTION = r"""
torch = has("torch")
if torch is not None and torch.submodule_search_locations:
    words = text(torch.submodule_search_locations[0], "version.py")
    find = lambda name: re.search(r"^" + name + r"\b[^=\n]*=\s*['\"]([^'\"]+)", words, re.M)
    version, cuda = find("__version__"), find("cuda")
    answer["framework"], answer["cuda"] = version and version[1] or "unknown", cuda and cuda[1]
"""

_FAULT_KINDS = """
none late-loader extra-compute pageable-copies syncs tiny-kernels slow-exchange whole-exchange pinned-core
too-few-workers logs saves collections between-layers varying-lengths looped-optimizer double-batches small-copies
sync-batchnorm emptied-cache fsdp2 tensor-parallel cuda-graph compiled side-stream-copies accumulation
checkpointing pipeline tensor-and-data-parallel uneven-stages long-sequences hot-expert
"""


class PyTorch(Framework):
    """PyTorch with one process per device. One node is started by `starter.py`, several nodes by torchrun."""

    name: ClassVar[str] = "pytorch"
    package: ClassVar[str] = "torch"
    title: ClassVar[str] = "PyTorch"
    question: ClassVar[str] = _QUESTION
    memory_format: ClassVar[MemoryFormat] = "nchw"
    shares_launches: ClassVar[bool] = True
    entry: ClassVar[str] = "gpudiag.training.frameworks.pytorch.meeting:meet_through_files"
    trainer: ClassVar[str] = "gpudiag.training.jobs.train:train"
    fault_job: ClassVar[str] = "gpudiag.training.jobs.faults.pytorch.registry:run"
    fault_kinds: ClassVar[frozenset[str]] = frozenset(_FAULT_KINDS.split())

    def check(self, options: RunOptions) -> None:
        """Raise UsageError if the job has several nodes, but the environment has no secret that the nodes share."""
        if options.nodes > 1 and not os.environ.get(SECRET_VARIABLE):
            raise UsageError(
                f"--nnodes needs {SECRET_VARIABLE}, because anybody can reach the address where nodes meet",
                f"Set it to the same long random word on every node: export {SECRET_VARIABLE}=$(openssl rand -hex 16)",
            )

    def command_line(self, plan: Plan, request: Path) -> list[str]:
        """Return the command for one node or, with `Job.rendezvous`, for several nodes.

        One node: `python starter.py pytorch PROCESSES python -m gpudiag.training.jobs RUN_DIR REQUEST`.
        Several nodes: `python torchrun.py ... python -m gpudiag.training.jobs RUN_DIR REQUEST`.
        `Framework.command_line` describes the arguments.
        """
        rendezvous = plan.job.rendezvous
        if rendezvous is None:
            start = [sys.executable, "-I", str(_STARTER), self.name, str(plan.processes)]
            return [*start, plan.job.python, *self.worker(plan, request)]
        meeting = [f"--rdzv-backend={rendezvous.backend}", f"--rdzv-endpoint={rendezvous.endpoint}", "--no-python"]
        if rendezvous.node_rank is not None:
            meeting.append(f"--node-rank={rendezvous.node_rank}")
        count = [f"--nnodes={plan.job.nodes}", f"--nproc-per-node={plan.processes}"]
        return [plan.job.python, str(_TORCHRUN), *count, *meeting, plan.job.python, *self.worker(plan, request)]

    def set_environment(self, values: dict[str, str], plan: Plan, private: Path) -> None:
        """Set the directory of compiled kernels, the network interface, and how processes connect.

        `Framework.set_environment` describes the arguments.
        """
        # Keep compiled kernels between runs, in the directory that PyTorch would use without gpudiag's TMPDIR.
        values.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"torchinductor_{_user()}"))
        if plan.job.rendezvous is None:
            values[STORE_VARIABLE] = str(private / "store")
        if plan.job.nodes > 1:
            # Pass the rendezvous id in a variable that torchrun reads, because other users can see command lines.
            values["PET_RDZV_ID"] = hashlib.sha256(values.get(SECRET_VARIABLE, "").encode()).hexdigest()
        if plan.job.nodes == 1 and sys.platform == "linux":
            # Other hosts cannot reach the loopback interface. Without GLOO_SOCKET_IFNAME, gloo resolves the host's
            # name to find an interface, which fails on some machines.
            values.setdefault("GLOO_SOCKET_IFNAME", "lo")
            values.setdefault("NCCL_SOCKET_IFNAME", "lo")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        return str(os.getuid())
