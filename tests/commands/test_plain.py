"""Lines that are understood without the parser: the same as with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpudiag.commands.plain import plain_analysis
from tests.cli_process import environment, gpudiag

TRACES = Path(__file__).parents[1] / "traces" / "tiny"


@pytest.mark.parametrize(
    ("line", "paths", "as_json"),
    [
        ("analyze traces", ("traces",), False),
        ("analyze a b --json", ("a", "b"), True),
        ("analyze --json a", ("a",), True),
    ],
)
def test_plain_lines(line: str, paths: tuple[str, ...], as_json: bool) -> None:
    plain = plain_analysis(line.split())
    assert plain is not None
    assert (plain.paths, plain.as_json) == (paths, as_json)


@pytest.mark.parametrize(
    "line",
    [
        "analyze",
        "analyze --json",
        "analyze a --width 80",
        "analyze a --help",
        "analyze -- a",
        "analyze -",
        "report a",
        "",
    ],
)
def test_other_lines_are_the_parsers(line: str) -> None:
    assert plain_analysis(line.split()) is None


def test_a_plain_line_says_what_the_parser_would_and_imports_none() -> None:
    program = (
        "import sys; from gpudiag.cli import main; "
        f"assert main(['analyze', {str(TRACES)!r}, '--json']) == 0; assert 'typer' not in sys.modules"
    )
    plain = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), check=False
    )
    assert plain.returncode == 0, plain.stderr
    parsed = gpudiag("analyze", str(TRACES), "--json", "--max-trace-gb", "4")
    assert json.loads(plain.stdout) == json.loads(parsed.stdout)
