"""Recorded machines: see build.py for where each figure comes from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpudiag.machine.facts_file import load_facts

if TYPE_CHECKING:
    from gpudiag.model.facts import Facts

HERE = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in HERE.glob("*.json")))


def machine(name: str) -> Facts:
    """The recorded facts of a machine, by the name of its file."""
    return load_facts(HERE / f"{name}.json")
