"""Test `gpudiag analyze` on tables of operations."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli_process import in_this_process

pytestmark = pytest.mark.processes
pytest.importorskip("pyarrow", reason="needs gpudiag[tables]")

TABLE = Path(__file__).parents[1] / "traces" / "pipelines" / "ST.parquet"


def test_json_has_imbalance_and_findings() -> None:
    result = in_this_process("analyze", str(TABLE), "--json")
    assert (result.returncode, result.stderr) == (0, "")
    analysis = json.loads(result.stdout)
    assert analysis["schema"] == "gpudiag/pipeline/1"
    assert analysis["imbalance"]["slowdown"] == pytest.approx(1.179, rel=0.02)
    assert set(analysis["imbalance"]["by"]) == {"rank", "stage", "sequence"}
    assert [finding["code"] for finding in analysis["findings"]] == ["straggler", "pipeline-bubble"]
    assert len(analysis["workers"]) == 8


def test_directory_with_a_table_gives_the_same_report(tmp_path: Path) -> None:
    shutil.copy(TABLE, tmp_path)
    report = in_this_process("analyze", str(tmp_path), "--width", "300").stdout
    of_file = in_this_process("analyze", str(TABLE), "--width", "300").stdout.partition("\nMore ")[0]
    assert report.partition("\nMore ")[0] == of_file.replace(str(TABLE), str(tmp_path / TABLE.name))
    assert "dp 2 \N{MULTIPLICATION SIGN} pp 4" in report


@pytest.mark.parametrize(("word", "code"), [("pipeline-bubble", 1), ("straggler", 1), ("warning", 1), ("critical", 0)])
def test_fail_on_applies_to_tables(word: str, code: int) -> None:
    assert in_this_process("analyze", str(TABLE), "--json", "--fail-on", word).returncode == code


def test_other_commands_refuse_tables_and_name_analyze() -> None:
    result = in_this_process("report", str(TABLE))
    assert result.returncode == 4
    assert "gpudiag analyze" in result.stderr
