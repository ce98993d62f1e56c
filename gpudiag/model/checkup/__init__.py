"""Define the result of `gpudiag doctor`: a list of checks (`gpudiag/doctor/1`)."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudiag.model.quantities import Rate

CHECKUP_SCHEMA = "gpudiag/doctor/1"

CheckStatus = Literal["ok", "warning", "blocked", "unknown", "not-needed"]
"""`ok`: nothing stands in the way. `warning`: a job runs, but slower, or its trace lacks something. `blocked`: a job
fails. `unknown`: the check could not read enough. `not-needed`: the check does not apply to this machine."""

CHECK_CODES = (
    "interpreter",
    "framework",
    "gpu-driver",
    "gpu-state",
    "profiler-access",
    "peer-access",
    "iommu-acs",
    "nccl-transport",
    "environment",
    "shared-memory",
    "locked-memory",
    "cpu-cores",
    "numa-affinity",
    "container",
    "virtual-machine",
)
"""Codes of the checks, in the order of the report."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one check.

    Attributes:
        code: one of `CHECK_CODES`.
        title: the result in one sentence.
        fix: commands or steps that remove the problem, the most likely first; empty if there is no problem.
        not_seen: facts that the check could not read, and the reason; None if it could read all.
    """

    code: str
    status: CheckStatus
    title: str
    fix: tuple[str, ...] = ()
    not_seen: str | None = None


class Checkup(msgspec.Struct, frozen=True, kw_only=True):
    """All checks of a machine. `summary` has versions and device models for bug reports; it names no host or user."""

    schema: str = CHECKUP_SCHEMA
    created: str = ""
    version: str = ""
    seconds: Rate = 0.0
    summary: dict[str, str] = {}
    checks: tuple[Check, ...] = ()


def worst_status(checkup: Checkup) -> CheckStatus:
    """Return `blocked` or `warning` if any check has this status, else `ok`."""
    statuses = {check.status for check in checkup.checks}
    return "blocked" if "blocked" in statuses else "warning" if "warning" in statuses else "ok"
