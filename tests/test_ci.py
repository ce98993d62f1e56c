"""Test how CI repeats failed tests and counts correct rows."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

SCRIPT = Path(__file__).parents[1] / ".ci" / "again.py"
TESTS = """
import pathlib, pytest
GROUP = pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("name", ["plain", "a@b", pytest.param("c@d", marks=GROUP)])
def test_disturbed(name):
    assert not pathlib.Path("busy").exists()
@GROUP
def test_wrong():
    assert not pathlib.Path("wrong").exists()
"""


def again(root: Path, most: int) -> tuple[int, dict[str, object]]:
    """Let tests in `root` fail, and rerun at most `most` of them by `again.py`; return (exit code, record).

    The file `busy`, which makes tests fail, is removed before the rerun; the file `wrong` remains.
    """
    (root / ".ci").mkdir()
    script = root / ".ci" / "again.py"
    script.write_bytes(SCRIPT.read_bytes())
    (root / "test_it.py").write_text(TESTS, encoding="utf-8")
    (root / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    every = [sys.executable, "-m", "pytest", "-q", "-n", "1", "--dist", "loadgroup"]
    subprocess.run(every, cwd=root, check=False, capture_output=True)
    (root / "busy").unlink(missing_ok=True)
    command = [sys.executable, str(script), "--most", str(most), "--rate", "seen"]
    code = subprocess.run(command, cwd=root, check=False, capture_output=True).returncode
    return code, json.loads((root / "build" / "ci" / "again.json").read_text(encoding="utf-8"))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("there", "most", "code", "failed"),
    [
        pytest.param(["busy"], 3, 0, 3, id="disturbed"),
        pytest.param(["busy"], 2, 1, 3, id="more than are run again", marks=pytest.mark.apart),
        pytest.param(["wrong"], 3, 1, 1, id="wrong", marks=pytest.mark.apart),
        pytest.param(["busy", "wrong"], 4, 1, 4, id="one of them wrong"),
        pytest.param([], 3, 1, 0, id="none had failed, so something else did"),
    ],
)
def test_rerun_passes_only_if_all_failed_tests_pass_alone(
    tmp_path: Path, there: list[str], most: int, code: int, failed: int
) -> None:
    for name in there:
        (tmp_path / name).touch()
    exit_code, record = again(tmp_path, most)
    assert exit_code == code
    assert (len(record["failed"]), record["passed_alone"]) == (failed, code == 0)  # type: ignore[arg-type]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("rows")


#: This program writes a run of seven rows; its argument is the number of correct rows. Without an argument the program
#: writes no rows.
RUN = """
import json, os, sys
for right in sys.argv[2:]:
    os.mkdir(sys.argv[1])
    verdicts = ["right"] * int(right) + ["wrong"] * (7 - int(right))
    rows = [{"fault": f"fault {at}", "verdict": verdict, "why": [verdict]} for at, verdict in enumerate(verdicts)]
    with open(f"{sys.argv[1]}/{'rows' if right == '6' else 'selftest'}.json", "w") as file:
        json.dump({"rows": rows}, file)
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("right", "code", "made"),
    [
        pytest.param("7", 0, 1, id="all right"),
        pytest.param("6", 0, 1, id="two of seven more would do"),
        pytest.param("5", 0, 2, id="three of seven more are too few once in 200 times"),
        pytest.param("4", 0, 2, id="just as many as asked for"),
        pytest.param("3", 1, 2, id="too few"),
        pytest.param("0", 1, 1, id="too few, whatever the second brings"),
        pytest.param("", 1, 1, id="nothing left"),
    ],
)
def test_rows_are_counted_until_the_result_is_decided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], counted: ModuleType, *, right: str, code: int, made: int
) -> None:
    place = str(tmp_path / "run-{run}")
    words = ["it", "--times", "2", "--rows", "7", "--least", "8", "--right", "0.8", "--rate", "seen", "--kept", place]
    command = ["--", sys.executable, "-S", "-c", RUN, place, *right.split()]
    assert counted.main([*words, *command], tmp_path / "kept") == code
    record = json.loads((tmp_path / "kept" / "it.json").read_text(encoding="utf-8"))
    assert (len(record["runs"]), record["rows_right"]) == (made, int(right or 0) * made)
    misses = "".join(f"wrong\tfault {at}\twrong\n" for at in range(int(right or 7), 7))
    assert capsys.readouterr().out.count(misses) >= made


@given(st.integers(0, 8), st.integers(-3, 10), st.floats(0, 1))
def test_probability_of_too_few_rows_sums_over_all_outcomes(rows: int, least: int, right: float) -> None:
    """Compare the probability with an enumeration of all outcomes of the rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        probability = importlib.import_module("rows").too_few(rows, least, right)
    outcomes = itertools.product((0, 1), repeat=rows)
    few = [math.prod(right if is_right else 1 - right for is_right in each) for each in outcomes if sum(each) < least]
    assert probability == pytest.approx(sum(few), abs=1e-12)


def test_nightly_runs_every_ignored_file_separately() -> None:
    script = (SCRIPT.parent / "nightly").read_text(encoding="utf-8")
    ignored = set(re.findall(r"--ignore=(\S+)", script)) - {"tests/gpu"}
    assert len(ignored) == 3
    for path in ignored:
        assert re.search(rf"(?<!--ignore=)\b{re.escape(path)}\b", script), path
        assert (SCRIPT.parents[1] / path).is_file()
