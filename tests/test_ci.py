"""`.ci/again.py`: which failures of a run beside others count as disturbances, and which do not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "again.py"
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
