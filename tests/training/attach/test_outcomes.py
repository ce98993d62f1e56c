"""Test what is reported on real commands that fail or do not train, or whose ranks end early or drift apart."""

from __future__ import annotations

import os
import pty
import signal
import sys
import time
from pathlib import Path

import pytest

from gpudiag.model.run import RUN_SCHEMA, RunRecord
from gpudiag.model.run_directory import read_json
from gpudiag.training.attach.command_process import Settings
from gpudiag.training.attach.start import run_command
from tests.cli_process import SECONDS, environment, gpudiag, in_this_process
from tests.forked import run_forked
from tests.forked_programs import ForkedProgram
from tests.training.attach.attached import QUICK, QUIET, TWO_RANKS, Attach, whole

pytestmark = pytest.mark.processes

ALONE = pytest.mark.xdist_group("attach")
SEVERAL = pytest.mark.xdist_group("processes")

SCRIPTS = str(Path(__file__).with_name("scripts.py"))

RPC = """
import os, torch, torch.distributed.rpc as rpc, torch.distributed.autograd as autograd
from torch.distributed.optim import DistributedOptimizer
import tempfile
with tempfile.TemporaryDirectory() as place:
    rpc.init_rpc("one", rank=0, world_size=1, rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{place}/meeting"))
    model = torch.nn.Linear(4, 4)
    optimizer = DistributedOptimizer(torch.optim.SGD, [rpc.RRef(each) for each in model.parameters()], lr=0.1)
    for _ in range(50):
        with autograd.context() as context:
            autograd.backward(context, [model(torch.randn(2, 4)).sum()])
            optimizer.step(context)
    rpc.shutdown()
"""


@ALONE
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        pytest.param(("/nowhere/train.py",), 2, "/nowhere/train.py: no such file; your command failed with exit code 2",
                     id="missing"),
        pytest.param((SCRIPTS, "9", "never"), 3,
                     "your command failed with exit code 3 before its first optimizer step", id="failed"),
        pytest.param(("-c", "import os; os.kill(os.getpid(), 9)"), 137,
                     "your command was ended by SIGKILL before its first optimizer step", id="killed"),
        pytest.param(("-c", "import torch; 1 / 0"), 1,
                     "rank 0: ZeroDivisionError: division by zero, before its first optimizer step", id="raised"),
        pytest.param(("-c", "print(1)"), 0, "your command imports no PyTorch", id="no PyTorch"),
        pytest.param(("-I", "-c", "print(1)"), 0, "your command started no Python that gpudiag can see", id="isolated"),
        pytest.param(("-c", "import torch"), 0,
                     "your command imports PyTorch and took no step of an optimizer of torch.optim", id="no step"),
        pytest.param((SCRIPTS, "1", "plain"), 0, "1 optimizer step was seen; about 33 are needed", id="one step",
                     marks=pytest.mark.measured),
        pytest.param(("-c", RPC), 0, "through RPC, where gpudiag cannot see them", id="rpc",
                     marks=pytest.mark.measured),
    ],
)  # fmt: skip
def test_each_failure_reason_has_its_sentence(words: tuple[str, ...], code: int, said: str, attach: Attach) -> None:
    got, run, _, err = attach(*words, separate=code == 2)  # for a missing file, the interpreter itself exits with 2
    assert (got, run.status, run.ranks) == (code, "failed", ())
    assert run.error is not None
    assert run.error.startswith(said) or run.error.endswith(said), err
    assert "gpudiag.profile(" not in run.error


@ALONE
def test_short_command_gets_advice_with_command_line_options(attach: Attach) -> None:
    """The steps are so short that convergence takes a hundred steps."""
    _, run, _, _ = attach(SCRIPTS, "60", "plain", warmup=None, steps=None)
    assert run.error is not None
    assert run.error.startswith("60 optimizer steps were seen; the loop ended after")
    assert "more steps are needed until their times have converged, or --warmup" in run.error
    assert "gpudiag.profile(" not in run.error


@ALONE
@pytest.mark.apart
def test_closure_evaluation_counts_as_step(attach: Attach) -> None:
    """Three steps of L-BFGS would be too few, so each evaluation counts as a step. The losses do not change."""
    code, run, out, err = attach(SCRIPTS, "3", "few_lbfgs")
    assert (code, run.error, [whole(rank) for rank in run.ranks]) == (0, None, [True]), err
    assert run.steps_found is not None
    assert (run.steps_found.closure, run.steps_found.calls_per_step) == (True, 1)
    bare = run_forked("import tests.training.attach.scripts as s; s.settle(); s.few_lbfgs(3)", **QUIET)
    assert (bare.returncode, out) == (0, bare.stdout), bare.stderr


@SEVERAL
@pytest.mark.parametrize(
    ("ends", "said"),
    [
        pytest.param("raise", "rank 1: ValueError: bad luck, after optimizer step 30", marks=pytest.mark.measured),
        pytest.param("exit", "rank 1: exit code 4, after optimizer step 30", marks=pytest.mark.measured),
        ("SIGKILL", "rank 1: ended by SIGKILL"),
        pytest.param("SIGSEGV", "rank 1: ended by SIGSEGV", marks=pytest.mark.measured),
    ],
)
def test_error_names_rank_that_ended_first(
    ends: str, said: str, attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 fails too when its connection breaks, but later than rank 1."""
    monkeypatch.setenv("ENDS", ends)
    code, run, _, err = attach(TWO_RANKS, SCRIPTS, "60", "ends", steps=200)
    assert (code, run.status) == (1, "failed")
    assert run.error is not None
    assert run.error.startswith(said), (run.error, err)


@SEVERAL
@pytest.mark.parametrize(
    ("group", "steps"),
    [("", "200"), pytest.param("1", "1200", marks=pytest.mark.measured)],
    ids=["no group", "group"],
)
def test_drifting_ranks_do_not_stop_each_other(
    group: str, steps: str, attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast rank would end long before the slow rank reaches the same step, so the fast rank waits for at most 2 s.

    On a busy machine the ranks of a group check the store only every 512 steps, because a check may take as long as a
    step.
    """
    monkeypatch.setenv("GROUP", group)
    code, run, out, err = attach(TWO_RANKS, SCRIPTS, steps, "drift")
    assert (code, run.error, [whole(rank) for rank in run.ranks]) == (0, None, [True, True]), err
    assert run.world_size == 2
    took_s = {int(rank): float(seconds) for rank, seconds in (line.split() for line in out.splitlines())}
    assert took_s[1] < took_s[0], "rank 1 did not wait until rank 0 was done"
    assert ("ranks 0, 1 have no process group: each was measured separately" in err) == (not group)


#: Rank 1 computes and communicates, but its optimizer never steps.
ONE_NEVER_STEPS = """
import os, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    model(torch.randn(4, 8)).square().mean().backward()
    if os.environ["RANK"] == "0":
        optimizer.step()
dist.barrier()
"""

#: Two independent processes each act as the only rank.
TWO_UNNUMBERED = f"""
import subprocess, sys
two = [subprocess.Popen([sys.executable, {SCRIPTS!r}, "60", "plain"]) for _ in range(2)]
sys.exit(max(each.wait() for each in two))
"""


@SEVERAL
@pytest.mark.measured
def test_error_names_rank_that_never_steps(tmp_path: Path, attach: Attach) -> None:
    script = tmp_path / "never.py"
    script.write_text(ONE_NEVER_STEPS)
    code, run, _, err = attach(TWO_RANKS, str(script))
    assert (code, run.status) == (0, "failed"), err
    assert (
        run.error
        == "rank 1 took no optimizer step: the measurement waits for all ranks, and the others trained unmeasured"
    )


@ALONE
@pytest.mark.measured
def test_warning_counts_unmeasured_processes(attach: Attach) -> None:
    code, run, out, err = attach("-c", TWO_UNNUMBERED)
    assert (code, run.error, [whole(rank) for rank in run.ranks]) == (0, None, [True]), err
    assert len(out.split()) == 240
    assert "1 more process that trained was not measured" in err


@SEVERAL
@pytest.mark.measured
def test_warning_names_stopped_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**QUIET, "ENDS": "SIGSTOP"}.items():
        monkeypatch.setenv(name, value)
    words = Settings(run_dir=str(tmp_path), command=(sys.executable, TWO_RANKS, SCRIPTS, "60", "ends"), **QUICK)
    said: list[str] = []

    def hear(sentence: str) -> None:
        said.append(sentence)
        if "kill -CONT" in sentence:
            os.kill(int(sentence.rpartition(" ")[2]), signal.SIGCONT)

    code, _ = run_command(words, lambda _message: None, on_warning=hear)
    assert code == 0, "the stopped rank continued"
    assert any(sentence.startswith("rank 1 is stopped") for sentence in said)


class Profiled(ForkedProgram):
    """A run of gpudiag with a script, both in forks; construction waits until the script trains."""

    def __init__(self, tmp_path: Path, *words: str, kind: str, **values: str) -> None:
        self._out, self._err = tmp_path / "out", tmp_path / "err"
        options = ("--warmup", "2", *words, "--output", str(tmp_path / "run"))
        command = (sys.executable, "-m", "gpudiag", "profile", *options, "--", sys.executable, SCRIPTS, "2000", kind)
        super().__init__(command, environment(**QUIET, **values), [[]], out=self._out, err=self._err)
        self.until(self._out, "here\n")

    def until(self, path: Path, text: str) -> None:
        """Wait until the file `path`, to which the program prints, contains a text."""
        until_s = time.monotonic() + SECONDS
        while text not in path.read_text():
            assert self.poll() is None, self._err.read_text()
            assert time.monotonic() < until_s, self._err.read_text()
            time.sleep(0.02)

    def until_said(self, text: str) -> None:
        """Wait until gpudiag has printed a text."""
        self.until(self._err, text)

    def end(self) -> tuple[str, str]:
        """Wait for the end; return the script's output, and what gpudiag has printed."""
        self.wait()
        return self._out.read_text(), self._err.read_text()


@ALONE
@pytest.mark.parametrize("name", ["SIGTERM", *(
    pytest.param(name, marks=pytest.mark.measured) for name in ("SIGQUIT", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2")
)])  # fmt: skip
def test_forwarded_signal_ends_command_and_keeps_unprofiled_steps(name: str, tmp_path: Path) -> None:
    process = Profiled(tmp_path, "--steps", "1000", kind="slow")
    number = getattr(signal, name)
    process.send_signal(number)
    _, err = process.end()
    assert process.returncode == 128 + number
    assert f"ended by {name}, at unprofiled step" in err
    assert f"gpudiag analyze {tmp_path}" not in err, "the run has no trace to analyse"
    run = read_run(tmp_path / "run")
    assert run.ranks[0].unprofiled is not None
    assert len(run.ranks[0].unprofiled.step_ms) > 10
    assert _ended(run.ranks[0].pid)


def read_run(run_dir: Path) -> RunRecord:
    return read_json(run_dir / "run.json", RunRecord, RUN_SCHEMA)


def _ended(pid: int) -> bool:
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.05)
    return False


@ALONE
@pytest.mark.apart
def test_command_can_handle_forwarded_signal(tmp_path: Path) -> None:
    process = Profiled(tmp_path, kind="checkpoints", SAYS_AT="10")
    process.send_signal(signal.SIGUSR1)
    process.end()
    assert process.returncode == 9


#: This program counts the interrupts received within a second of the first.
COUNTS_INTERRUPTS = """
import signal, sys, time
came = []
signal.signal(signal.SIGINT, lambda *_: came.append(1))
print("ready", flush=True)
while not came:
    time.sleep(0.01)
time.sleep(1)
print(f"interrupts: {len(came)} in all", flush=True)
"""


@ALONE
def test_terminal_interrupt_reaches_command_once(tmp_path: Path) -> None:
    """The terminal sends the signal to gpudiag and to the command, which share a process group."""
    command = [sys.executable, "-m", "gpudiag", "profile", "--output", str(tmp_path / "run"), "--"]
    (tmp_path / "program.py").write_text(COUNTS_INTERRUPTS)
    command += [sys.executable, str(tmp_path / "program.py")]
    child, terminal = pty.fork()
    if child == 0:
        os.execve(sys.executable, command, environment(**QUIET))  # noqa: S606
    seen = b""
    typed = False
    until_s = time.monotonic() + SECONDS
    while b"in all" not in seen and time.monotonic() < until_s:
        seen += os.read(terminal, 4096)
        if b"ready" in seen and not typed:
            typed = True
            os.write(terminal, b"\x03")
    os.close(terminal)
    os.waitpid(child, 0)
    assert b"interrupts: 1 in all" in seen, seen


@ALONE
def test_interrupt_of_gpudiag_reaches_command(tmp_path: Path) -> None:
    process = Profiled(tmp_path, "--steps", "1000", kind="slow")
    process.send_signal(signal.SIGINT)
    _, err = process.end()
    assert process.returncode == 130
    assert "KeyboardInterrupt" in err


@ALONE
@pytest.mark.apart
def test_directory_in_use_is_refused(tmp_path: Path) -> None:
    process = Profiled(tmp_path, "--steps", "20", kind="slow", SAYS_AT="60")
    before = sorted(path.name for path in (tmp_path / "run" / "ranks").iterdir())
    again = in_this_process("profile", "--output", str(tmp_path / "run"), "--", sys.executable, "-c", "print(1)")
    assert (again.returncode, again.stdout) == (2, "")
    assert "another gpudiag is writing to it" in again.stderr
    assert sorted(path.name for path in (tmp_path / "run" / "ranks").iterdir()) == before
    process.send_signal(signal.SIGTERM)
    process.end()


@ALONE
def test_diagnosis_is_printed_while_command_runs(tmp_path: Path) -> None:
    process = Profiled(tmp_path, "--steps", "5", kind="slow", SAYS_AT="10")
    process.until_said("your job goes on")
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    out, err = process.end()
    lines = err.partition("your job goes on")[0].splitlines()
    assert any(line.startswith("gpudiag: measured after ") and "ms per step" in line for line in lines), lines
    assert "gpudiag" not in out


@ALONE
@pytest.mark.parametrize("limit", ["100", pytest.param("6000", marks=pytest.mark.measured)])
@pytest.mark.apart
def test_full_disk_adds_one_warning(limit: str, tmp_path: Path) -> None:
    """Files cannot grow, either from the start or when a trace is written. Standard output and standard error are
    pipes, which have no limit."""
    words = ["profile", "--warmup", "2", "--steps", "5", "--output", str(tmp_path / "run"), "--"]
    root = str(Path(__file__).parents[3])
    done = gpudiag(
        *words, sys.executable, SCRIPTS, "60", "full_disk", cwd=tmp_path, PYTHONPATH=root, LIMIT=limit, **QUIET
    )
    assert (done.returncode, len(done.stdout.split())) == (6, 120), done.stderr
    assert "Traceback" not in done.stderr
    assert "could not be saved: " in done.stderr
    assert "gpudiag analyze" not in done.stderr


@ALONE
@pytest.mark.apart
def test_long_temporary_directory_name_works(tmp_path: Path, attach: Attach, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("t" * 120)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.setattr("tempfile.tempdir", None)
    code, run, _, err = attach(SCRIPTS, "40", "plain")
    assert (code, run.error) == (0, None), err
