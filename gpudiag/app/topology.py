"""`gpudiag topology`: what the machine has, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gpudiag.analysis.diagnosis.hardware import examine_facts
from gpudiag.errors import HardwareMissingError
from gpudiag.machine.facts_file import load_facts, save_facts
from gpudiag.machine.inventory.gather import gather_inventory
from gpudiag.model.facts import Facts


def topology(source: Path | None = None, *, save: Path | None = None) -> Facts:
    """The facts of this machine, or saved ones, with what is wrong.

    Args:
        source: saved facts, of whatever machine.
        save: where to keep them.

    Raises:
        UnreadableInputError: `source` holds no facts.
        GpudiagError: `save` cannot be written.
    """
    return judged(gather_inventory() if source is None else load_facts(source), save)


def judged(facts: Facts, save: Path | None) -> Facts:
    """The facts with today's findings, saved where that is wanted.

    Also for saved facts: the rules of today on the figures of then, and no word of a finding taken from a file.
    """
    facts = msgspec.structs.replace(facts, findings=examine_facts(facts))
    if save is not None:
        save_facts(facts, save)
    return facts


def check_gpu(facts: Facts, what: str) -> None:
    """Raises HardwareMissingError where there is no GPU; `what` can be had of the host alone."""
    if not facts.gpus:
        raise HardwareMissingError(
            f"no NVIDIA GPU: {facts.host.reasons.get('gpus', 'none is listed')}",
            f"Leave --require-gpu out to {what} the host alone.",
        )
