"""Test that findings of real commands name the line of the user's program."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudiag.app.analyze import analyze
from gpudiag.model.analysis import Analysis
from tests.training.attach.attached import Attach

pytestmark = pytest.mark.processes

#: This program trains with one fault, on the line that ends with the fault's name. `main` contains the loop and calls
#: the other functions.
FAULTY = """
import io, sys, time
import torch
from torch.utils.data import DataLoader, Dataset
fault = sys.argv[1]

def busy(ms):
    end = time.perf_counter() + ms / 1e3
    while time.perf_counter() < end:
        pass

class Samples(Dataset):
    def __len__(self):
        return 1 << 20
    def __getitem__(self, index):
        if fault in ("fetch", "worker"):
            time.sleep(0.002)  # fetch worker
        return torch.randn(64)

def hook(gradient):
    if fault == "hook":
        time.sleep(0.01)  # hook
    return gradient

def save(model):
    for _ in range(60):
        torch.save(model.state_dict(), io.BytesIO())  # save
    time.sleep(0.004)

def main():
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    model[1].weight.register_hook(hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(Samples(), batch_size=4, num_workers=int(fault == "worker"))
    for step, batch in enumerate(loader):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        if fault == "sleep":
            time.sleep(0.01)  # sleep
        if fault == "save":
            save(model)
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
        ("hook", {"host-stall"}),
        ("save", {"host-stall"}),
        ("fetch", {"input-bound"}),
        ("worker", {"input-bound"}),
    ],
)
def test_first_finding_names_the_line_of_the_fault(attach: Attach, tmp_path: Path, fault: str, codes: set[str]) -> None:
    analysis, line = run(attach, tmp_path, fault)
    first = analysis.findings[0]
    assert first.source is not None, analysis.findings
    assert (first.code in codes, Path(first.source.file).name, first.source.line) == (True, "train.py", line)
    assert first.title.startswith(f"train.py:{line} `")
    row = next(row for row in analysis.lines if row.line == line)
    assert row.process == ("worker" if fault == "worker" else "training")
    if fault in {"sleep", "hook"}:
        assert row.ms_per_step >= 10
        assert first.recoverable_ms_per_step == pytest.approx(row.ms_per_step, rel=0.6)
