"""Test `gpudiag selftest` on a machine without GPUs, with real processes, faults and diagnoses."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli_process import in_this_process
from tests.exposure import run_watched

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
FAULTS = ("none", "late-loader-one", "tensor-parallel")

Run = tuple["subprocess.CompletedProcess[str]", "Path"]

pytestmark = pytest.mark.xdist_group("processes")

#: Tests of a complete selftest. `.ci/nightly` also counts the correct rows of longer selftests.
MEASURED = pytest.mark.measured


def exit_code_of(stdout: str) -> int:
    """Return the exit code that the verdicts in the printed rows require."""
    return int(any(row["verdict"] == "wrong" for row in json.loads(stdout)["rows"]))


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a quick selftest while a second account tries to open its files; return (process, working directory)."""
    cwd = tmp_path_factory.mktemp("selftest")
    words = ("--quick", "--faults", ",".join(FAULTS), "--output", "out", "--json", "--markdown", "table.md")
    watched = run_watched(sys.executable, "-m", "gpudiag", "selftest", *words, cwd=cwd, **NO_GPU)
    watched.check()  # another account gets no answer and opens no file
    result = watched.result
    # The verdicts depend on the load of this machine. The exit code must match the verdicts.
    assert result.returncode == exit_code_of(result.stdout), result.stderr
    return result, cwd


def rows(run: Run) -> dict[str, Any]:
    return {row["fault"]: row for row in json.loads(run[0].stdout)["rows"]}


def names_in_trace(run: Run, fault: str, rank: int) -> set[str]:
    path = run[1] / "out" / "resnet20-cifar" / fault / "traces" / f"rank{rank}.pt.trace.json.gz"
    return {str(event.get("name")) for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]}


@MEASURED
def test_result_is_one_json_object_and_is_saved(quick: Run) -> None:
    result = json.loads(quick[0].stdout)
    assert (result["schema"], result["device"], result["world_size"]) == ("gpudiag/selftest/1", "cpu", 2)
    assert tuple(row["fault"] for row in result["rows"]) == FAULTS
    assert {score["name"]: score["of"] for score in result["scores"]}["rows with a false alarm"] == len(FAULTS)
    assert json.loads((quick[1] / "out" / "selftest.json").read_text(encoding="utf-8")) == result
    table = (quick[1] / "table.md").read_text(encoding="utf-8")
    assert all(f"| {fault} |" in table for fault in FAULTS)


@MEASURED
def test_wrong_row_gives_exit_code_1(quick: Run, tmp_path: Path) -> None:
    """Judge recorded runs against a false truth that no analysis can match."""
    shutil.copytree(quick[1] / "out", tmp_path / "out")
    path = tmp_path / "out" / rows(quick)["late-loader-one"]["run_dir"] / "ablation.json"
    ablation = json.loads(path.read_text(encoding="utf-8"))
    slowest = max(ms for block in ablation["blocks"] for steps in block["step_ms"] for ms in steps)
    for block in ablation["blocks"]:
        block["step_ms"] = [[20 * slowest if block["on"] else 1.0] * len(steps) for steps in block["step_ms"]]
    path.write_text(json.dumps(ablation), encoding="utf-8")
    again = in_this_process("selftest", "--from", "out", "--json", cwd=tmp_path)
    (row,) = (row for row in json.loads(again.stdout)["rows"] if row["fault"] == "late-loader-one")
    assert (row["verdict"], again.returncode) == ("wrong", 1)


@MEASURED
def test_late_loader_delays_every_second_block(quick: Run) -> None:
    """This test ignores the verdicts, because `.ci/nightly` counts the correct rows of the same selftest."""
    run_dir = quick[1] / "out" / "resnet20-cifar" / "late-loader-one"
    ablation = json.loads((run_dir / "ablation.json").read_text(encoding="utf-8"))
    assert [block["on"] for block in ablation["blocks"]] == [False, True, True, False]
    fastest = min(ms for block in ablation["blocks"] if block["on"] for ms in block["step_ms"][1])
    assert fastest > ablation["amount_ms"]


@MEASURED
def test_faults_add_no_range_or_name_to_a_trace(quick: Run) -> None:
    for rank in (0, 1):
        marks = {name for name in names_in_trace(quick, "late-loader-one", rank) if "gpudiag" in name}
        assert marks
        assert {name for name in marks if not name.startswith("gpudiag.module:ResNetCifar/")} == set()


@MEASURED
def test_each_fault_has_an_analysable_run(quick: Run) -> None:
    result = in_this_process("analyze", "out/resnet20-cifar/late-loader-one", "--json", cwd=quick[1])
    assert result.returncode == 0, result.stderr
    steps = json.loads(result.stdout)["steps"]
    assert steps["analysed"] >= 4
    assert steps["unprofiled_mean_ms"] > 0


@MEASURED
def test_communication_loss_comes_from_the_clean_job_or_the_whole_job(quick: Run) -> None:
    record = json.loads((quick[1] / "out/resnet20-cifar/tensor-parallel/run.json").read_text(encoding="utf-8"))
    assert record["strategy"] == "tensor-parallel"
    lost = {fault: row["exchange_ms"] for fault, row in rows(quick).items()}
    assert lost["none"] == lost["late-loader-one"] != lost["tensor-parallel"]
    assert lost["tensor-parallel"] == rows(quick)["tensor-parallel"]["true"]["ms"]


@MEASURED
def test_recorded_runs_are_judged_again_without_training(quick: Run) -> None:
    again = in_this_process("selftest", "--from", "out", "--json", cwd=quick[1])
    assert again.returncode == quick[0].returncode
    assert json.loads(again.stdout)["rows"] == json.loads(quick[0].stdout)["rows"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--faults", "slow"), 2, "there is no fault 'slow'"),
        (("--faults", "sync"), 2, "none of the requested faults"),
        (("--workloads", "gpt"), 2, "trains no 'gpt'"),
        (("--jobs", "compiled"), 2, "none of the requested faults"),
        (("--from", "nowhere", "--jobs", "compiled"), 2, "--jobs does not go with --from"),
        (("--from", "nowhere"), 4, "holds no runs of a selftest"),
        (("--from", "nowhere", "--devices", "2"), 2, "--devices does not go with --from"),
    ],
)
def test_impossible_selftest_is_refused(tmp_path: Path, words: tuple[str, ...], code: int, message: str) -> None:
    result = in_this_process("selftest", *words, cwd=tmp_path, **NO_GPU)
    assert result.returncode == code
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []
