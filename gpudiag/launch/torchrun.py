"""The command line and the environment of one launch through PyTorch's elastic launcher."""

from __future__ import annotations

import getpass
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import gpudiag
from gpudiag.worker.progress import SOCKET_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpudiag.launch.plan import Plan

WORKER = "gpudiag.workloads"


def command_line(plan: Plan) -> list[str]:
    """`python -m torch.distributed.run ... -m gpudiag.workloads RUN_DIR JOB COMMAND`.

    On one node the processes meet at a free port of the loopback address; on several, where `plan.rendezvous` says.
    """
    if plan.rendezvous is None:
        meeting = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    else:
        meeting = [
            f"--rdzv-backend={plan.rendezvous.backend}",
            f"--rdzv-endpoint={plan.rendezvous.endpoint}",
            "--rdzv-id=gpudiag",
        ]
        if plan.rendezvous.node_rank is not None:
            meeting.append(f"--node-rank={plan.rendezvous.node_rank}")
    return [
        plan.python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={plan.nodes}",
        f"--nproc-per-node={plan.processes}",
        *meeting,
        "-m",
        WORKER,
        str(plan.run_dir.resolve()),
        msgspec.json.encode(plan.job).decode(),
        msgspec.json.encode(plan.command).decode(),
    ]


def environment(
    plan: Plan, private: Path, progress: Path, *, has_gpudiag: bool, inherited: Mapping[str, str]
) -> dict[str, str]:
    """The training processes' environment: the user's own, and what this launch needs where the user has not chosen.

    Args:
        plan: the launch.
        private: a directory of this launch; everything temporary goes there and is removed with it.
        progress: the socket on which progress is told.
        has_gpudiag: the interpreter finds gpudiag by itself; otherwise a directory with nothing else is added.
        inherited: the user's environment.
    """
    values = dict(inherited)
    values[SOCKET_VARIABLE] = str(progress)
    values["TMPDIR"] = str(private)
    defaults = {
        "OMP_NUM_THREADS": str(plan.threads),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        # Compiled kernels are worth keeping from run to run; this is where they would be without our TMPDIR.
        "TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir()) / f"torchinductor_{_user()}"),
    }
    if plan.nodes == 1 and sys.platform == "linux":
        # gloo looks its own host name up to find an interface, which fails on machines whose name does not resolve.
        defaults["GLOO_SOCKET_IFNAME"] = "lo"
    for name, value in defaults.items():
        values.setdefault(name, value)
    if not plan.job.p2p:
        values["NCCL_P2P_DISABLE"] = "1"
    if plan.job.exchange.nccl_algo is not None:
        values["NCCL_ALGO"] = plan.job.exchange.nccl_algo.capitalize()
    if not has_gpudiag:
        only_us = private / "import"
        only_us.mkdir()
        (only_us / "gpudiag").symlink_to(Path(gpudiag.__file__).parent)
        values["PYTHONPATH"] = os.pathsep.join(filter(None, (str(only_us), inherited.get("PYTHONPATH"))))
    return values


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        return str(os.getuid())
