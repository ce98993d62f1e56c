"""Provide recorded machines: facts, whose sources `build.py` names, and trees of files that `record_tree.py` wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from gpudiag.machine.facts_file import load_facts

if TYPE_CHECKING:
    from gpudiag.model.facts import Facts

HERE = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in HERE.glob("*.json")))


def machine(name: str) -> Facts:
    """Return the recorded facts of machine `name`."""
    return load_facts(HERE / f"{name}.json")


def write_tree(name: str, root: Path, **changes: str) -> Path:
    """Write recorded files of /proc, /sys and /etc below `root`, and return `root`.

    Args:
        name: name of the recording in `trees/`.
        root: an empty directory.
        changes: path below `root` → content of a file that replaces the recorded one or is added.
    """
    files = json.loads((HERE / "trees" / f"{name}.json").read_text(encoding="utf-8"))
    for path, text in {**files, **changes}.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return root
