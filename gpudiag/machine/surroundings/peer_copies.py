"""Copy between all pairs of GPUs in a child process that is ended if it hangs."""

from __future__ import annotations

import msgspec

from gpudiag.machine.probes.assemble import assemble
from gpudiag.machine.probes.plan import installed
from gpudiag.machine.probes.programs import programs_directory
from gpudiag.machine.probes.runner import Planned, run_probes
from gpudiag.model.checkup.surroundings import PeerCopiesSeen
from gpudiag.model.facts import Facts

#: Seconds of measuring; enough for one verified copy of each path between eight GPUs.
_SECONDS = "0.5"


def copy_between_gpus(facts: Facts, limit_s: float) -> tuple[Facts, PeerCopiesSeen]:
    """Return the facts with the measured bandwidths of copies, and the outcome. The arrived data is verified.

    Args:
        facts: the inventory.
        limit_s: time limit in seconds, for loading and again for copying.
    """
    visible = sum(gpu.visible for gpu in facts.gpus)
    if visible < 2:
        return facts, PeerCopiesSeen(status="skipped", reason="fewer than two GPUs are visible")
    if not installed("cuda.bindings"):
        reason = "cuda-bindings is not installed (pip install cuda-bindings)"
        return facts, PeerCopiesSeen(status="skipped", reason=reason)
    program = Planned(
        name="copies between GPUs",
        program=programs_directory() / "copy_peer.py",
        arguments=("--quick", "--seconds", _SECONDS),
        setup_timeout_s=limit_s,
        timeout_s=limit_s,
        holds_gpus=True,
    )
    outcomes = run_probes([program])
    measured = assemble(facts, outcomes, ())
    # `PeerCopiesSeen` has the reason of missing copies, so the facts need not list it.
    kept = msgspec.structs.replace(measured, skipped=facts.skipped, probes=facts.probes)
    (outcome,) = outcomes
    if outcome.document is not None and outcome.document.errors and outcome.status == "ok":
        reason = "; ".join(f"{error.what}: {error.why}" for error in outcome.document.errors[:3])
        return kept, PeerCopiesSeen(status="failed", reason=reason)
    began_copying = outcome.measure_s > 0  # otherwise the time limit passed during loading
    timeout = "hung" if began_copying else "late"
    status = {"ok": "ok", "timeout": timeout, "unavailable": "skipped"}.get(outcome.status, "failed")
    pairs = len({frozenset((copy.src, copy.dst)) for copy in measured.bandwidth if copy.path == "peer"})
    return kept, PeerCopiesSeen(status=status, reason=outcome.reason, pairs=pairs)
