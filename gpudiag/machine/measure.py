"""Measure a machine: plan the probes, run them, and put what they found into its facts."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from gpudiag.machine.probes.assemble import assemble
from gpudiag.machine.probes.plan import plan_probes
from gpudiag.machine.probes.programs import programs_directory
from gpudiag.machine.probes.runner import Progress, run_probes
from gpudiag.model.facts import Facts

DEFAULT_TIMEOUT_S = 60.0


def probe_machine(
    facts: Facts,
    *,
    quick: bool = False,
    p2p: bool = True,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    on_progress: Callable[[Progress], None] | None = None,
) -> Facts:
    """Run every probe that this machine can carry.

    Args:
        facts: its inventory.
        quick: the essential paths only.
        p2p: False when quick and NCCL is to be measured with peer access off, instead of as it chooses.
        timeout_s: bound on loading and, again, on measuring of each program.
        on_progress: called from several threads with what runs now.

    Returns:
        The facts with bandwidth, latency, collectives and fits. A program that failed is in `skipped` with its reason
        and in `probes` with its status, and takes nothing else with it.
    """
    began = time.perf_counter()
    plan, skipped = plan_probes(facts, programs_directory(), quick=quick, p2p=p2p, timeout_s=timeout_s)
    outcomes = run_probes(plan, on_progress)
    measured = assemble(facts, outcomes, skipped)
    total = {"mode": "quick" if quick else "default", "seconds": round(time.perf_counter() - began, 3)}
    return msgspec.structs.replace(measured, probes={**measured.probes, "total": total})


def failed_probes(facts: Facts) -> tuple[str, ...]:
    """Names of the probes that failed as a whole or in part; one that says why it cannot measure here has not."""
    return tuple(
        name
        for name, how in facts.probes.items()
        if isinstance(how, dict) and (how.get("status") in {"failed", "timeout", "garbage"} or how.get("errors"))
    )
