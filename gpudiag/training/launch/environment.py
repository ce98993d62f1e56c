"""The environment of the training processes of one launch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import gpudiag
from gpudiag.training.frameworks.framework import Plan
from gpudiag.training.frameworks.registry import framework_named
from gpudiag.training.session.progress import SOCKET_VARIABLE


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
    }
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
    framework_named(plan.job.framework).set_environment(values, plan, private)
    return values
