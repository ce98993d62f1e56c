"""PyTorch, as those programs see it that start its processes."""

from __future__ import annotations

import getpass
import os
import sys
import tempfile
from pathlib import Path
from typing import ClassVar

from gpudiag.model.job import MemoryFormat
from gpudiag.training.frameworks.framework import Framework
from gpudiag.training.frameworks.plan import Plan

#: `torch/version.py` holds assignments only; importing torch takes seconds.
_QUESTION = r"""
torch = has("torch")
if torch is not None and torch.submodule_search_locations:
    words = text(torch.submodule_search_locations[0], "version.py")
    find = lambda name: re.search(r"^" + name + r"\b[^=\n]*=\s*['\"]([^'\"]+)", words, re.M)
    version, cuda = find("__version__"), find("cuda")
    answer["framework"], answer["cuda"] = version and version[1] or "unknown", cuda and cuda[1]
"""


class PyTorch(Framework):
    """One process per device, started by torchrun."""

    name: ClassVar[str] = "pytorch"
    package: ClassVar[str] = "torch"
    title: ClassVar[str] = "PyTorch"
    question: ClassVar[str] = _QUESTION
    memory_format: ClassVar[MemoryFormat] = "nchw"
    shares_launches: ClassVar[bool] = True
    trainer: ClassVar[str] = "gpudiag.training.jobs.train:train"
    fault_job: ClassVar[str] = "gpudiag.training.jobs.faults.pytorch.registry:run"
    fault_kinds: ClassVar[frozenset[str]] = frozenset(
        (
            "none",
            "late-loader",
            "extra-compute",
            "pageable-copies",
            "syncs",
            "tiny-kernels",
            "slow-exchange",
            "whole-exchange",
            "pinned-core",
        )
    )

    def command_line(self, plan: Plan) -> list[str]:
        """`python -m torch.distributed.run ... -m gpudiag.training.jobs RUN_DIR JOB`.

        On one node the processes meet at a free port of the loopback address; on several, where `Job.rendezvous` says.
        """
        where = plan.job.rendezvous
        if where is None:
            meeting = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
        else:
            meeting = [f"--rdzv-backend={where.backend}", f"--rdzv-endpoint={where.endpoint}", "--rdzv-id=gpudiag"]
            if where.node_rank is not None:
                meeting.append(f"--node-rank={where.node_rank}")
        count = [f"--nnodes={plan.job.nodes}", f"--nproc-per-node={plan.processes}"]
        return [plan.job.python, "-m", "torch.distributed.run", *count, *meeting, *self.worker(plan)]

    def set_environment(self, values: dict[str, str], plan: Plan, private: Path) -> None:  # noqa: ARG002
        """Where compiled kernels are kept, and which interface gloo takes."""
        # Compiled kernels are worth keeping from run to run; this is where they would be without our TMPDIR.
        values.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"torchinductor_{_user()}"))
        if plan.job.nodes == 1 and sys.platform == "linux":
            # gloo looks its host's name up to find an interface, which fails on machines whose name does not resolve.
            values.setdefault("GLOO_SOCKET_IFNAME", "lo")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        return str(os.getuid())
