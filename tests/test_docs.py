"""Test that the documentation agrees with the program, and that its links are valid."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from gpudiag import commands
from gpudiag.model.analysis import BUCKETS, VALIDITY_CODES
from tests.cli_process import SECONDS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def pinned(package: str) -> str:
    """Return the version of a package in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith(f"{package}=="))


@pytest.mark.skipif(
    any(version(package) != pinned(package) for package in ("typer", "pandas")),
    reason="another typer formats help in another way, another pandas tables",
)
@pytest.mark.processes
def test_generated_parts_are_up_to_date_and_no_link_is_dead() -> None:
    result = subprocess.run(
        [sys.executable, str(DOCS / "generate.py"), "--check"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_command_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert all(f"commands/{verb}.md" in index for verb in commands.SUMMARIES)


def test_pages_explain_every_bucket_and_warning() -> None:
    buckets = (DOCS / "report.md").read_text(encoding="utf-8")
    assert all(f"`{word}`" in buckets for word in BUCKETS)
    warnings = (DOCS / "findings" / "warnings.md").read_text(encoding="utf-8")
    assert all(f"`{word}`" in warnings for word in VALIDITY_CODES)
