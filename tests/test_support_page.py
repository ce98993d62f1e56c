"""Test that each cell of the support matrix names a test that exists, or says that there is none."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "support.md").read_text(encoding="utf-8")
NAMED = re.compile(r"^`([\w./-]+?)(?:::(\w+))?`$")


def cells() -> list[tuple[str, str]]:
    """Return (subject of the row, text) of each cell of the support matrix except those in the first column."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    split = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    bodies = [row for row in split if not row[0].startswith("---") and row[-1] not in HEADINGS]
    return [(row[0], cell) for row in bodies for cell in row[1:]]


#: Headings of the last column of each table.
HEADINGS = {"diagnosed", "on NVIDIA GPUs", "test"}


@pytest.mark.parametrize(("subject", "cell"), cells())
def test_cell_names_an_existing_test_or_says_untested(subject: str, cell: str) -> None:
    if cell in {"untested", "no", "not-applicable"}:
        return
    match = NAMED.match(cell.removeprefix("no, and said so: "))
    assert match is not None, cell
    path = ROOT / match[1]
    assert path.is_file(), subject
    if match[2] is not None:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert match[2] in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_versions_on_the_page_are_those_that_ci_installs() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8") + (ROOT / "Makefile").read_text(encoding="utf-8")
    for package, name in (("torch", "PyTorch"), ("tensorflow", "TensorFlow")):
        pinned = re.search(rf"\b{package}==(\d+\.\d+)", pins)
        assert pinned is not None
        assert f"{name} {pinned[1]}" in PAGE


def test_every_supported_python_has_a_row() -> None:
    classifiers = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert classifiers
    assert all(f"| Python {version} | `.ci/wheel` |" in PAGE for version in classifiers)
