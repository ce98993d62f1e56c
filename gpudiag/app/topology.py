"""`gpudiag topology`: list the machine's hardware and its problems."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gpudiag.analysis.diagnosis.hardware import examine_facts
from gpudiag.errors import HardwareMissingError
from gpudiag.machine.facts_file import load_facts, save_facts
from gpudiag.machine.inventory.gather import gather_inventory
from gpudiag.model.facts import Facts


def topology(source: Path | None = None, *, save: Path | None = None) -> Facts:
    """Return the facts of this machine, or the facts in `source`, with findings.

    Args:
        source: saved facts of any machine.
        save: file for the facts.
    """
    return with_findings(gather_inventory() if source is None else load_facts(source), save)


def with_findings(facts: Facts, save: Path | None) -> Facts:
    """Replace the findings in the facts by the findings of the current rules, and save the facts if a file is given.

    Thus no text of a finding comes from an untrusted file of facts.
    """
    facts = msgspec.structs.replace(facts, findings=examine_facts(facts))
    if save is not None:
        save_facts(facts, save)
    return facts


def check_gpu(facts: Facts, action: str) -> None:
    """Raise HardwareMissingError if there is no GPU. `action` is a verb for the hint."""
    if not facts.gpus:
        raise HardwareMissingError(
            f"no NVIDIA GPU: {facts.host.reasons.get('gpus', 'none is listed')}",
            f"Leave --require-gpu out to {action} the host alone.",
        )
