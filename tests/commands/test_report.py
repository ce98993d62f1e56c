from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpudiag.model.analysis import Analysis
from gpudiag.model.run_directory import encode_json
from tests import builders
from tests.cli_process import gpudiag, in_this_process
from tests.commands.terminals import in_terminal
from tests.report.consoles import drawn

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes

ESCAPE = "\x1b"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "analysis.json"
    path.write_bytes(encode_json(builders.late_loader()))
    return path


def test_saved_analysis_is_drawn_without_traces(saved: Path) -> None:
    result = gpudiag("report", str(saved), "--width", "80")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == drawn(builders.late_loader(), 80, paths=[str(saved)], command="report")


def test_run_directory_without_traces_shows_its_saved_analysis(saved: Path) -> None:
    expected = drawn(builders.late_loader(), 80, paths=[str(saved.parent)], command="report")
    assert in_this_process("report", str(saved.parent), "--width", "80").stdout == expected


def test_analysis_is_recognized_by_its_schema(saved: Path) -> None:
    other = saved.rename(saved.with_name("before.json"))
    assert in_this_process("report", str(other)).returncode == 0


def test_analysis_survives_json_round_trip() -> None:
    for build in (builders.late_loader, builders.processor_only, builders.many_ranks):
        assert msgspec.json.decode(encode_json(build()), type=Analysis) == build()


def test_nan_and_infinity_are_null_in_json() -> None:
    data = json.loads(encode_json(builders.hostile()))
    assert data["steps"]["mean_ms"] is None
    assert data["devices"][0]["hidden_communication_ms"] is None


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b'{"schema": "gpudiag/analysis/99"}', "gpudiag/analysis/99"),
        (b'{"schema": "gpudiag/analysis/1"', "analysis.json"),
        (b'{"schema": "gpudiag/analysis/1"}', "framework"),
        (b'{"schema": "gpudiag/analysis/1", "framework": 7}', "framework"),
        (b'{"schema": "gpudiag/analysis/1", "framework": "\xff\xfe"}', "analysis.json"),
    ],
)
def test_broken_analysis_gives_code_4_one_line_and_a_hint(content: bytes, wrong: str, saved: Path) -> None:
    saved.write_bytes(content)
    result = in_this_process("report", str(saved))
    assert result.returncode == 4
    assert result.stdout == ""
    first, second = result.stderr.splitlines()
    assert wrong in first
    assert second.startswith("  hint: ")


def test_missing_path_gives_code_4(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone"):
        result = in_this_process("report", str(path))
        assert result.returncode == 4
        assert len(result.stderr.splitlines()) == 2


def test_pipe_gets_100_columns_without_escape_sequences(saved: Path) -> None:
    assert gpudiag("report", str(saved)).stdout == drawn(
        builders.late_loader(), 100, paths=[str(saved)], command="report"
    )


@pytest.mark.parametrize("columns", [40, 72, 120])
def test_columns_and_width_set_the_width_of_a_pipe(columns: int, saved: Path) -> None:
    expected = drawn(builders.late_loader(), columns, paths=[str(saved)], command="report")
    assert in_this_process("report", str(saved), COLUMNS=str(columns)).stdout == expected
    assert in_this_process("report", str(saved), "--width", str(columns), COLUMNS="61").stdout == expected


def test_force_color_colours_a_pipe_unless_no_color_is_set(saved: Path) -> None:
    coloured = in_this_process("report", str(saved), FORCE_COLOR="1", TERM="xterm-256color").stdout
    assert "\x1b[38;5;" in coloured
    quiet = in_this_process("report", str(saved), FORCE_COLOR="1", NO_COLOR="1", TERM="xterm-256color").stdout
    assert "\x1b[38;5;" not in quiet
    assert "░" in quiet, "without colour the buckets must differ in their characters"


@pytest.mark.parametrize("columns", [40, 100])
def test_terminal_report_uses_its_width_and_colours(columns: int, saved: Path) -> None:
    code, shown = in_terminal("report", str(saved), columns=columns, TERM="xterm-256color")
    assert code == 0
    assert shown == drawn(builders.late_loader(), columns, colour="256", paths=[str(saved)], command="report")


@pytest.mark.parametrize("changes", [{"TERM": "dumb"}, {"TERM": "xterm-256color", "NO_COLOR": "1"}])
def test_terminal_without_colours_gets_characters(changes: dict[str, str], saved: Path) -> None:
    code, shown = in_terminal("report", str(saved), columns=80, **changes)
    assert code == 0
    assert "\x1b[38" not in shown
    assert "\x1b[31" not in shown
    assert "░" in shown
    if changes["TERM"] == "dumb":
        assert ESCAPE not in shown


def test_ascii_terminal_gets_ascii_bars(saved: Path) -> None:
    shown = gpudiag("report", str(saved), PYTHONIOENCODING="ascii").stdout
    assert "#####" in shown
    assert shown.isascii()
