"""Test users' commands as real processes, with and without gpudiag."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpudiag.app.analyze import analyze_run
from gpudiag.training.attach.command_process import Settings
from gpudiag.training.attach.start import run_command
from tests.cli_process import SECONDS, environment, gpudiag, in_this_process
from tests.forked import run_forked
from tests.forked_jobs import forked_commands
from tests.training.attach.attached import QUICK, QUIET, Attach, whole

pytestmark = pytest.mark.processes

#: Single-process tests run on one worker, which computes `losses` once. Single-process tests may run at the same time
#: as multi-process tests.
ALONE = pytest.mark.xdist_group("attach")
SEVERAL = pytest.mark.xdist_group("processes")

SCRIPTS = Path(__file__).with_name("scripts.py")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0")
STEPS = 40


@functools.cache
def losses(measured: bool) -> dict[str, list[str]]:
    """Return the output of each kind of script, from one process that runs them without gpudiag.

    Only the kinds in `ALWAYS` run, or if `measured` is true, only the other kinds, which usual tests do not need.
    """
    kinds = [kind for kind in ONE_PROCESS if (kind in ALWAYS) != measured]
    program = f"import sys; sys.argv = ['', '{STEPS}']; import tests.training.attach.scripts as s\n"
    program += "".join(f"s.settle(); s.{kind}({STEPS}); print()\n" for kind in kinds)
    done = run_forked(program, **QUIET)
    assert done.returncode == 0, done.stderr
    return dict(zip(kinds, (part.split("\n") for part in done.stdout.split("\n\n")), strict=False))


#: Kinds of scripts, and the number of optimizer calls per step of each kind.
ONE_PROCESS = {
    "accumulation": 1, "gan": 6, "in_backward": 1, "grad_scaler": 1, "zero": 4, "lbfgs": 1, "compiled": 1, "workers": 1,
    "moves": 1,
}  # fmt: skip
#: Kinds with the highest risk run in every test run; all other kinds run only in CI.
ALWAYS = frozenset(("gan", "in_backward"))


@ALONE
@pytest.mark.parametrize("kind", [
    pytest.param(kind, marks=() if kind in ALWAYS else pytest.mark.measured) for kind in ONE_PROCESS
])  # fmt: skip
def test_script_is_measured_and_output_is_unchanged(kind: str, attach: Attach, tmp_path: Path) -> None:
    code, run, out, _ = attach(str(SCRIPTS), str(STEPS), kind)
    assert (code, run.status, run.error) == (0, "complete", None)
    assert [line for line in out.split("\n") if line] == [line for line in losses(kind not in ALWAYS)[kind] if line]
    assert [whole(rank) for rank in run.ranks] == [True]
    assert run.steps_found is not None
    assert run.steps_found.calls_per_step == ONE_PROCESS[kind]
    analysis = analyze_run(tmp_path / "run")
    assert (analysis.steps.analysed, "no-step-marks" in {doubt.code for doubt in analysis.validity}) == (4, False)


#: One program forks two ranks and imports PyTorch for both; its losses equal those of the job under torchrun.
TWO_FORKS = f"""
import os, sys
sys.argv = ["", "{STEPS}"]
import tests.training.attach.scripts as s
for rank in range(2):
    if os.fork() == 0:
        os.environ["OMPI_COMM_WORLD_RANK"] = str(rank)
        s.settle()
        s.numbered({STEPS})
sys.exit(sum(os.waitstatus_to_exitcode(os.wait()[1]) != 3 for _ in range(2)))
"""


def two_processes(meeting: Path) -> list[str]:
    done = run_forked(TWO_FORKS, **QUIET, MEETING=str(meeting))
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.split("\n"))


@SEVERAL
def test_torchrun_command_is_measured(tmp_path: Path) -> None:
    """Output, exit code and losses equal those of the job without gpudiag; in addition, a report is printed."""
    command = [sys.executable, *TORCHRUN, str(SCRIPTS), str(STEPS), "ddp"]
    words = ["profile", "--output", "run", "--warmup", "2", "--steps", "5", "--", *command]
    done = gpudiag(*words, cwd=tmp_path, PYTHONPATH=str(Path(__file__).parents[3]), **QUIET)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == two_processes(tmp_path / "meeting")
    assert "\nMore  gpudiag analyze run --full " in done.stderr
    assert "\n      run/report.html " in done.stderr
    assert "each ends with AdamW.step" in done.stderr
    record = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert record["command"] == command
    assert record["steps_found"]["by"] == "optimizer"
    assert [(rank["rank"], rank["error"], len(rank["unprofiled"]["step_ms"])) for rank in record["ranks"]] in (
        [(0, None, 5), (1, None, 5)],
        [(0, None, 4), (1, None, 4)],  # one of the five steps is excluded, because an epoch ended in it
    )
    assert all(rank["timed"]["input_ms"] for rank in record["ranks"])
    again = json.loads(gpudiag("analyze", "run", "--json", cwd=tmp_path).stdout)
    assert (again["world_size"], again["ranks_present"], again["steps"]["analysed"]) == (2, [0, 1], 4)
    assert again["timed"] is not None


@ALONE
def test_stop_ends_job_whose_optimizers_step_within_backward(attach: Attach) -> None:
    code, run, _, err = attach(str(SCRIPTS), "1000000", "in_backward", stop=True)
    assert (code, run.status, [whole(rank) for rank in run.ranks]) == (0, "complete", [True]), err


@SEVERAL
@pytest.mark.measured
def test_spawned_ranks_are_measured(attach: Attach) -> None:
    words = (str(SCRIPTS), str(STEPS), "spawn")
    code, run, out, err = attach(*words, separate=True)
    assert (code, run.status, [whole(rank) for rank in run.ranks]) == (0, "complete", [True, True]), err
    bare = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=environment(**QUIET), check=False
    )
    assert sorted(out.split("\n")) == sorted(bare.stdout.split("\n"))


@ALONE
@pytest.mark.parametrize("kind", ["own_optimizer", pytest.param("inference", marks=pytest.mark.measured)])
def test_loop_without_optimizer_is_recorded_by_time(kind: str, attach: Attach, tmp_path: Path) -> None:
    code, run, out, _ = attach(str(SCRIPTS), "600", kind, patience_s=2.0, stop=True)
    assert (code, run.status, out) == (0, "complete", "")
    assert run.steps_found is not None
    assert run.steps_found.by == "time"
    assert [rank.run_id for rank in run.ranks] == [run.run_id] != [""], "`gpudiag gather` needs a run id"
    analysis = analyze_run(tmp_path / "run")
    assert analysis.steps.analysed > 3
    assert "no-step-marks" in {doubt.code for doubt in analysis.validity}


@ALONE
@pytest.mark.parametrize("before", ["20", "30"], ids=["kernel-only", "full"])
def test_recording_ends_when_script_makes_profiler(
    before: str, attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script's profiler still records its five steps of two layers each."""
    monkeypatch.setenv("BEFORE", before)
    code, run, out, err = attach(str(SCRIPTS), str(STEPS), "own_profiler")
    assert (code, len(out.split())) == (0, 2 * STEPS + 2)
    assert "could not be saved" not in err
    assert run.error is not None
    assert "its own profiler" in run.error
    assert run.ranks[0].unprofiled is not None


@ALONE
@pytest.mark.measured
def test_script_with_earlier_profiler_is_not_recorded(attach: Attach) -> None:
    code, run, _, said = attach(str(SCRIPTS), str(STEPS), "own_profiler")
    assert (code, run.error, run.ranks[0].trace) == (0, None, None)
    assert run.ranks[0].unprofiled is not None
    assert "its own profiler" in said


@ALONE
def test_crash_during_recording_keeps_script_exit_code(attach: Attach) -> None:
    code, run, _, err = attach(str(SCRIPTS), "27", "crash")
    assert code == 1
    assert "ValueError: not my day" in err
    assert run.error == "rank 0: ValueError: not my day, after optimizer step 27"
    assert (run.ranks[0].unprofiled is not None, run.ranks[0].light is not None) == (True, True)


@ALONE
def test_unwritable_run_directory_is_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory of records is a file here, so that not even root can write there."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "ranks").write_text("")
    words = Settings(run_dir=str(tmp_path / "run"), command=(sys.executable, str(SCRIPTS), "20", "plain"), **QUICK)
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    notes: list[str] = []
    with forked_commands():
        code, run = run_command(words, lambda message: notes.append(message.note or ""))
    assert (code, run.status, len(capfd.readouterr().out.split())) == (0, "failed", 40)
    assert any("exists" in note for note in notes)


def test_existing_sitecustomize_still_runs(tmp_path: Path) -> None:
    """The user's `sitecustomize` may be a package, and sees an unchanged `sys.path`."""
    (tmp_path / "sitecustomize").mkdir()
    (tmp_path / "sitecustomize" / "__init__.py").write_text("from sitecustomize import more\n")
    (tmp_path / "sitecustomize" / "more.py").write_text("import sys\nsys.theirs = True\n")
    program = "import sys, sitecustomize; print(sys.theirs, sitecustomize.__file__, sys.path)"
    outputs = []
    for words in ([], ["profile", "--output", str(tmp_path / "run"), "--"]):
        command = ["-m", "gpudiag", *words, sys.executable] if words else []
        done = subprocess.run(
            [sys.executable, *command, "-c", program],
            capture_output=True, text=True, env=environment(PYTHONPATH=str(tmp_path)), timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]


def test_command_options_are_parsed() -> None:
    for words, hint in (
        (["train.py"], "gpudiag profile -- python train.py"),
        (["no-such-launcher", "-n", "2", "train.py"], "gpudiag profile -- no-such-launcher -n 2 train.py"),
        (["--stop-after"], "gpudiag profile --stop-after -- COMMAND"),
        (["--"], "gpudiag profile -- torchrun train.py"),
        (["--json", "--", "python"], "gpudiag analyze DIR --json"),
        (["--strategy", "nccl", "--", "python"], "The command decides that."),
        (["resnet50", "--", "python"], "Leave it out."),
        (["--", "no-such-command"], "-- torchrun"),
    ):
        done = in_this_process("profile", *words)
        assert (done.returncode, hint in done.stderr) == (2, True), (words, done.stderr)
