"""Test `gpudiag.trace_handler` in trainers, with the real libraries in a separate environment (`make trainers`)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import gpudiag
from tests.cli_process import SECONDS, environment

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / "build" / "trainers-venv" / "bin" / "python"

pytestmark = [
    pytest.mark.processes,
    pytest.mark.xdist_group("processes"),
    pytest.mark.skipif(not PYTHON.exists(), reason="make trainers has not been run"),
]

LIGHTNING = """
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.profilers import PyTorchProfiler
from torch.utils.data import DataLoader, TensorDataset
import gpudiag

class Small(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

schedule = torch.profiler.schedule(wait=2, warmup=1, active=5, repeat=1)
profiler = PyTorchProfiler(schedule=schedule, on_trace_ready=gpudiag.trace_handler("run"))
trainer = Trainer(profiler=profiler, max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                  enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Small(), DataLoader(TensorDataset(torch.randn(160, 64)), batch_size=8))
"""

TRANSFORMERS = """
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
import gpudiag

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
    def forward(self, x, labels=None):
        return {"loss": self.layer(x).square().mean()}

class Step(TrainerCallback):
    def __init__(self, profiler):
        self.profiler = profiler
    def on_step_end(self, args, state, control, **kwargs):
        self.profiler.step()

rows = [{"x": torch.randn(64), "labels": torch.zeros(1)} for _ in range(160)]
arguments = TrainingArguments("out", per_device_train_batch_size=8, num_train_epochs=1, use_cpu=True, report_to=[],
                              save_strategy="no", disable_tqdm=True)
schedule = torch.profiler.schedule(wait=2, warmup=1, active=5, repeat=1)
with torch.profiler.profile(schedule=schedule, on_trace_ready=gpudiag.trace_handler("run")) as prof:
    Trainer(Small(), arguments, train_dataset=rows, callbacks=[Step(prof)]).train()
"""

ACCELERATE = """
import torch
from accelerate import Accelerator, ProfileKwargs
import gpudiag

options = {"wait": 2, "warmup": 1, "active": 5, "repeat": 1, "skip_first": 0}
kwargs = ProfileKwargs(activities=["cpu"], schedule_option=options, on_trace_ready=gpudiag.trace_handler("run"))
accelerator = Accelerator(cpu=True, kwargs_handlers=[kwargs])
model = torch.nn.Linear(64, 64)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
with accelerator.profile() as prof:
    for _ in range(12):
        accelerator.backward(model(torch.randn(8, 64)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        prof.step()
"""


@pytest.mark.parametrize(
    "program", [LIGHTNING, TRANSFORMERS, ACCELERATE], ids=["lightning", "transformers", "accelerate"]
)
def test_trainers_call_the_handler(program: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    changes = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(PYTHON), "train.py"],
        cwd=tmp_path,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("gpudiag: full report: gpudiag analyze ") == 1
    assert gpudiag.analyze(tmp_path / "run").steps.analysed >= 1
