"""Provide recorded machines; `build.py` names the source of each figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpudiag.machine.facts_file import load_facts

if TYPE_CHECKING:
    from gpudiag.model.facts import Facts

HERE = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in HERE.glob("*.json")))


def machine(name: str) -> Facts:
    """Return the recorded facts of the machine in this file."""
    return load_facts(HERE / f"{name}.json")
