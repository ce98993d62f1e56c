"""Test that findings of real commands name the line of the user's program."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudiag.app.analyze import analyze
from gpudiag.model.analysis import Analysis
from tests.training.attach.attached import TWO_RANKS, Attach

pytestmark = pytest.mark.processes

#: This program trains with one fault, on the line that ends with the name of the fault. `main` contains the loop and
#: calls all other functions.
FAULTY = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset
fault = sys.argv[1]

class Samples(Dataset):
    def __len__(self):
        return 1 << 20
    def __getitem__(self, index):
        if fault == "worker":
            time.sleep(0.002)  # worker
        return torch.randn(64)

def main():
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(Samples(), batch_size=4, num_workers=int(fault == "worker"))
    for step, batch in enumerate(loader):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        if fault == "sleep":
            time.sleep(0.01)  # sleep
        if step == 130:
            break

main()
"""


def run(attach: Attach, tmp_path: Path, fault: str) -> tuple[Analysis, int]:
    """Profile the program with a fault; return the analysis and the number of the fault's line."""
    script = tmp_path / "train.py"
    script.write_text(FAULTY)
    code, record, _, err = attach(str(script), fault)
    assert (code, record.error) == (0, None), err
    marked = [
        number for number, line in enumerate(FAULTY.splitlines(), 1) if fault in line.partition("  # ")[2].split()
    ]
    return analyze([tmp_path / "run"]), marked[0]


@pytest.mark.parametrize(
    ("fault", "codes"),
    [
        ("sleep", {"host-stall"}),
        ("worker", {"input-bound"}),
    ],
)
def test_first_finding_names_the_line_of_the_fault(attach: Attach, tmp_path: Path, fault: str, codes: set[str]) -> None:
    """`benchmarks/judge_lines.py`, which `.ci/nightly` starts, counts the right lines of more faults."""
    analysis, line = run(attach, tmp_path, fault)
    first = analysis.findings[0]
    assert first.source is not None, analysis.findings
    assert (first.code in codes, Path(first.source.file).name, first.source.line) == (True, "train.py", line)
    assert first.title.startswith(f"train.py:{line} `")
    row = next(row for row in analysis.lines if row.line == line)
    assert row.process == ("worker" if fault == "worker" else "training")
    if fault == "sleep":
        assert row.ms_per_step >= 4  # on Python 3.11, times of lines are scaled if other programs slowed the steps
        assert first.recoverable_ms_per_step == pytest.approx(row.ms_per_step, rel=0.6)


#: A package that trains in a thread. The step is a decorated function, and a generator yields the batches.
STRUCTURED = """
import functools, json, threading, time
import sys
import torch
from torch.utils.data import DataLoader, Dataset
from project.callbacks import Callbacks
fault = sys.argv[1]

class Samples(Dataset):
    def __len__(self):
        return 1 << 16
    def __getitem__(self, index):
        if fault == "spawned":
            time.sleep(0.002)  # spawned
        return torch.randn(64)

def batches():
    context = "spawn" if fault == "spawned" else None
    workers = int(fault == "spawned")
    for batch in DataLoader(Samples(), batch_size=8, num_workers=workers, multiprocessing_context=context):
        if fault == "generator":
            time.sleep(0.01)  # generator
        yield batch

def logged(function):
    @functools.wraps(function)
    def wrapper(*values):
        result = function(*values)
        if fault == "decorator":
            time.sleep(0.01)  # decorator
        return result
    return wrapper

@logged
def step(model, optimizer, batch):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()

def train():
    torch.set_num_threads(1)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    callbacks = Callbacks(fault)
    for number, batch in enumerate(batches()):
        step(model, optimizer, batch)
        callbacks.on_step_end(number)
        if number == 130:
            break

if __name__ == "__main__":
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
"""
CALLBACKS = """
import time

class Callbacks:
    def __init__(self, fault):
        self.all = [self.nothing, self.write] if fault == "callback" else [self.nothing]
    def on_step_end(self, number):
        for callback in self.all:
            callback(number)
    def nothing(self, number):
        pass
    def write(self, number):
        time.sleep(0.01)  # callback
"""


@pytest.mark.parametrize(
    "fault", ["generator", pytest.param("decorator", marks=pytest.mark.measured), "callback", "spawned"]
)
def test_line_is_named_beside_the_function_of_the_step(
    attach: Attach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    package = tmp_path / "project"
    package.mkdir()
    for name, text in (("__init__", ""), ("train", STRUCTURED), ("callbacks", CALLBACKS)):
        (package / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    code, record, _, err = attach("-m", "project.train", fault)
    assert (code, record.error) == (0, None), err
    analysis = analyze([tmp_path / "run"])
    name, text = ("callbacks.py", CALLBACKS) if fault == "callback" else ("train.py", STRUCTURED)
    marked = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith(f"# {fault}")]
    sources = [finding.source for finding in analysis.findings if finding.source is not None]
    named = [(source.file, source.line) for source in sources]
    assert named[:1] == [(f"project/{name}", marked[0])], analysis.findings
    assert named.count(named[0]) == 1
    assert analysis.findings[0].code == ("input-bound" if fault == "spawned" else "host-stall")


STRAGGLER = """
import os, sys, time
import torch
import torch.distributed as dist

def report(number):
    if dist.get_rank() == 1:
        time.sleep(0.06)  # slow

def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number in range(60):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        report(number)
    del model  # before its process group: `PytorchStrategy.close` explains the order
    dist.destroy_process_group()

main()
"""


@pytest.mark.xdist_group("processes")
def test_straggler_names_the_line_that_only_its_rank_runs(attach: Attach, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STRAGGLER)
    code, record, _, err = attach(TWO_RANKS, str(tmp_path / "train.py"))
    assert (code, record.error) == (0, None), err
    analysis = analyze([tmp_path / "run"])
    straggler = next(finding for finding in analysis.findings if finding.code == "straggler")
    line = next(number for number, text in enumerate(STRAGGLER.splitlines(), 1) if text.endswith("# slow"))
    assert straggler.ranks == (1,)
    assert straggler.source is not None
    assert (Path(straggler.source.file).name, straggler.source.line) == ("train.py", line)
    assert straggler is analysis.findings[0]
