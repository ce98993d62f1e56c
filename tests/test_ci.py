"""What CI does with what is uncertain: failures beside other tests, and rows of which most have to be right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "again.py"
ROWS = Path(__file__).parents[1] / ".ci" / "rows.py"
TESTS = """
import pathlib, pytest
@pytest.mark.parametrize("number", range(3))
def test_disturbed(number):
    assert not pathlib.Path("busy").exists()
def test_wrong():
    assert not pathlib.Path("wrong").exists()
"""


def again(root: Path, most: int) -> tuple[int, dict[str, object]]:
    """Run the tests of `root` once, take what disturbs them away, and let the script judge what had failed."""
    (root / ".ci").mkdir()
    script = root / ".ci" / "again.py"
    script.write_bytes(SCRIPT.read_bytes())
    (root / "test_it.py").write_text(TESTS, encoding="utf-8")
    (root / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=root, check=False, capture_output=True)
    (root / "busy").unlink(missing_ok=True)
    command = [sys.executable, str(script), "--most", str(most), "--rate", "seen"]
    code = subprocess.run(command, cwd=root, check=False, capture_output=True).returncode
    return code, json.loads((root / "build" / "ci" / "again.json").read_text(encoding="utf-8"))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("there", "most", "code", "failed"),
    [
        pytest.param(["busy"], 3, 0, 3, id="disturbed"),
        pytest.param(["busy"], 2, 1, 3, id="more than are run again"),
        pytest.param(["wrong"], 3, 1, 1, id="wrong"),
        pytest.param(["busy", "wrong"], 4, 1, 4, id="one of them wrong"),
        pytest.param([], 3, 1, 0, id="none had failed, so something else did"),
    ],
)
def test_what_fails_alone_too_fails(tmp_path: Path, there: list[str], most: int, code: int, failed: int) -> None:
    for name in there:
        (tmp_path / name).touch()
    exit_code, record = again(tmp_path, most)
    assert exit_code == code
    assert (len(record["failed"]), record["passed_alone"]) == (failed, code == 0)  # type: ignore[arg-type]


@pytest.mark.processes
@pytest.mark.parametrize(("least", "code"), [(3, 0), (4, 1)])
def test_rows_are_counted_over_all_runs_and_each_miss_is_printed(tmp_path: Path, least: int, code: int) -> None:
    """Of a selftest, of a run of scripts, and of one that left nothing."""
    for name, verdicts in (("selftest", ["right", "wrong"]), ("rows", ["right", "right"])):
        rows = [{"fault": f"{name} {at}", "verdict": verdict, "why": [verdict]} for at, verdict in enumerate(verdicts)]
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.json").write_text(json.dumps({"rows": rows}), encoding="utf-8")
    places = [str(tmp_path / name) for name in ("selftest", "rows", "lost")]
    done = subprocess.run(
        [sys.executable, str(ROWS), "--least", str(least), *places], capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert "wrong\tselftest 1" in done.stdout
    assert f"3 of 4 rows right; asked: at least {least}" in done.stdout
