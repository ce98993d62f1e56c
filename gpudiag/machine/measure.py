"""Measure a machine: plan the probes, run them, and add their results to the machine's facts."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from gpudiag.machine.probes.assemble import assemble
from gpudiag.machine.probes.plan import plan_probes
from gpudiag.machine.probes.programs import programs_directory
from gpudiag.machine.probes.runner import ProbeStep, run_probes
from gpudiag.model.facts import Facts

DEFAULT_TIMEOUT_S = 60.0


def probe_machine(
    facts: Facts,
    *,
    quick: bool = False,
    p2p: bool = True,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    on_progress: Callable[[ProbeStep], None] | None = None,
) -> Facts:
    """Run every probe that applies to this machine.

    Args:
        facts: the inventory of the machine.
        quick: measure only the essential paths.
        p2p: False to measure NCCL without peer access; only used with `quick`.
        timeout_s: time limit of each program in seconds, for loading and again for measuring.
        on_progress: called with each program's progress, from several threads.

    Returns:
        The facts with bandwidth, latency, collectives and fits. A program that failed is in `skipped` with its reason
        and in `probes` with its status; the results of the other programs are complete.
    """
    began = time.perf_counter()
    plan, skipped = plan_probes(facts, programs_directory(), quick=quick, p2p=p2p, timeout_s=timeout_s)
    outcomes = run_probes(plan, on_progress)
    measured = assemble(facts, outcomes, skipped)
    total = {"mode": "quick" if quick else "default", "seconds": round(time.perf_counter() - began, 3)}
    return msgspec.structs.replace(measured, probes={**measured.probes, "total": total})


def failed_probes(facts: Facts) -> tuple[str, ...]:
    """Return the names of probes that failed at least in part. A probe that is unavailable here has not failed."""
    return tuple(
        name
        for name, report in facts.probes.items()
        if isinstance(report, dict)
        and (report.get("status") in {"failed", "timeout", "garbage"} or report.get("errors"))
    )
