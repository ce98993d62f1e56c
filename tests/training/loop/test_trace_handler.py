"""Test `gpudiag.trace_handler` in real jobs that use `torch.profiler`."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gpudiag
from tests.cli_process import SECONDS, environment
from tests.forked_programs import ForkedProgram

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]

#: The statement `each` runs at the beginning of each step. The statement `last` runs just before the call of
#: `prof.step` in which the trace of the first six steps becomes ready.
TRAIN = """
import os, time
import torch
import gpudiag

rank = int(os.environ["RANK"])
model = torch.nn.Linear(256, 256)
if {group}:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
schedule = torch.profiler.schedule(wait=1, warmup=1, active=4, repeat={repeat})
with torch.profiler.profile(schedule=schedule, on_trace_ready=gpudiag.trace_handler({arguments})) as prof:
    for step in range(6 * {repeat} + 2):
        {each}
        time.sleep(0.02 * rank)
        model(torch.randn(64, 256)).square().mean().backward()
        optimizer.step()
        if step == 5:
            {last}
        prof.step()
print("trained")
del model  # before the process group is closed; `PytorchStrategy.close` explains the order
if {group}:
    torch.distributed.destroy_process_group()
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def train(
    directory: Path,
    *launcher: str,
    arguments: str = "'run'",
    repeat: int = 1,
    each: str = "pass",
    last: str = "pass",
    world_size: int = 2,
    ranks: int = 1,
) -> subprocess.CompletedProcess[str]:
    """Run the program under a launcher; without one, run the first `ranks` of `world_size` ranks as forks.

    `arguments` are the arguments of `trace_handler` as source text, and `repeat` is the number of recordings.
    """
    group = bool(launcher) or ranks > 1
    program = TRAIN.format(arguments=arguments, repeat=repeat, each=each, last=last, group=group)
    (directory / "train.py").write_text(program, encoding="utf-8")
    values = environment(PYTHONPATH=str(ROOT), CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    if launcher:
        command = [sys.executable, *launcher, "train.py"]
        return subprocess.run(
            command, cwd=directory, env=values, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        values |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listening.getsockname()[1])}
    out, err = directory / "out.txt", directory / "err.txt"
    with contextlib.chdir(directory):
        processes = [
            ForkedProgram(
                [sys.executable, "train.py"],
                {**values, "RANK": str(rank), "WORLD_SIZE": str(world_size)},
                out=out,
                err=err,
            )
            for rank in range(ranks)
        ]
    code = max(process.wait() for process in processes)
    return subprocess.CompletedProcess(["train.py"], code, out.read_text(), err.read_text())


def lines_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines that gpudiag printed."""
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("gpudiag: ")]


@pytest.mark.parametrize("launcher", [(), pytest.param(TORCHRUN, marks=pytest.mark.apart)], ids=["forks", "torchrun"])
def test_rank_0_prints_the_verdict_of_all_ranks_once(launcher: tuple[str, ...], tmp_path: Path) -> None:
    first, *others = lines_of(train(tmp_path, *launcher, ranks=2))
    assert "ms per step while profiling. " in first
    assert others[-1] == f"gpudiag: full report: gpudiag analyze {tmp_path / 'run'} --full"
    assert len(others) <= 2
    files = sorted(str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*"))
    assert files == ["traces", *(f"traces/rank{rank}.pt.trace.json.gz" for rank in (0, 1))]
    analysis = gpudiag.analyze(tmp_path / "run")
    assert (analysis.ranks_present, analysis.world_size, analysis.framework) == ((0, 1), 2, "pytorch")
    assert analysis.steps.analysed >= 1


def test_rank_0_trains_on_while_another_rank_has_no_trace_yet(tmp_path: Path) -> None:
    # Rank 1 saves its trace after rank 0 has begun the next step. If rank 0 waited in the handler, both ranks would
    # hang.
    each = "if step == 6 and rank == 0: open('next', 'w').close()"
    last = "while rank == 1 and not os.path.exists('next'): time.sleep(0.05)"
    assert "ms per step" in lines_of(train(tmp_path, ranks=2, each=each, last=last))[0]


def test_missing_ranks_are_named_and_traces_of_an_earlier_job_do_not_count(tmp_path: Path) -> None:
    traces = tmp_path / "run" / "traces"
    traces.mkdir(parents=True)
    earlier = traces / "rank1.pt.trace.json.gz"
    earlier.write_bytes(b"of an earlier job")
    os.utime(earlier, (time.time() - 1, time.time() - 1))
    lines = lines_of(train(tmp_path, arguments="'run', wait_s=0.5", world_size=3))
    assert lines[0].startswith(f"gpudiag: ranks 1 and 2 of 3 wrote no trace into {tmp_path / 'run'} within 0.5 s")
    assert "ms per step" in lines[1]


def test_later_recordings_have_directories_of_their_own(tmp_path: Path) -> None:
    lines = lines_of(train(tmp_path, repeat=2, world_size=1))
    reports = sorted(line for line in lines if "full report" in line)
    assert [Path(line.removesuffix(" --full").rpartition(" ")[2]).name for line in reports] == ["run", "recording-2"]
    assert gpudiag.analyze(tmp_path / "run" / "recording-2").ranks_present == (0,)


def test_training_goes_on_if_the_directory_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file", encoding="utf-8")
    done = train(tmp_path)
    (line,) = lines_of(done)
    assert line.startswith(f"gpudiag: the trace could not be saved in {tmp_path / 'run'}: ")
    assert done.stdout == "trained\n"


def test_making_the_handler_imports_only_its_module() -> None:
    program = (
        "import sys, gpudiag\n"
        "import atexit, contextlib, os, subprocess, time, pathlib, typing, collections.abc, importlib\n"
        "before = set(sys.modules)\n"
        "gpudiag.trace_handler('run')\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), timeout=SECONDS, check=True
    )
    assert done.stdout.split() == [
        "gpudiag.training",
        "gpudiag.training.loop",
        "gpudiag.training.loop.trace_handler",
    ]
