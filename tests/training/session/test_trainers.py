"""Test callbacks of trainers, with the real libraries in a separate environment (`make trainers`)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import gpudiag
from gpudiag.model.run import RUN_SCHEMA, RunRecord
from gpudiag.model.run_directory import read_json
from tests.cli_process import SECONDS, environment

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / "build" / "trainers-venv" / "bin" / "python"

pytestmark = [
    pytest.mark.apart,
    pytest.mark.xdist_group("processes"),
    pytest.mark.skipif(not PYTHON.exists(), reason="make trainers has not been run"),
]

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

LIGHTNING = """
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset
import gpudiag

class Small(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()
    def validation_step(self, batch, index):
        self.layer(batch[0])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

def loader(batches):
    return DataLoader(TensorDataset(torch.randn(8 * batches, 64)), batch_size=8)

callback = gpudiag.LightningCallback("run", warmup=3, steps=5, active=3, batch_size=16)
trainer = Trainer(callbacks=[callback], max_epochs=3, accumulate_grad_batches=2, accelerator="cpu", logger=False,
                  enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Small(), loader(20), loader(2))
print("updates", trainer.global_step)
"""

# PyTorch's gloo threads may hold the tensors of a gather after the gather is reported complete, and then abort the
# process when its interpreter ends (PyTorch 2.13, also without gpudiag). Therefore the program sleeps before it ends.
TRANSFORMERS = """
import time
import torch
from transformers import Trainer, TrainingArguments
import gpudiag

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
    def forward(self, x, labels=None):
        return {"loss": self.layer(x).square().mean()}

rows = [{"x": torch.randn(64), "labels": torch.zeros(1)} for _ in range(640)]
arguments = TrainingArguments("out", per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=1,
                              use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True)
callback = gpudiag.TransformersCallback("run", warmup=3, steps=5, active=3, stop=True)
trainer = Trainer(Small(), arguments, train_dataset=rows, callbacks=[callback])
trainer.train()
print("updates", trainer.state.global_step)
time.sleep(0.5)
torch.distributed.destroy_process_group()
"""

ACCELERATE = """
import time
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
import gpudiag

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(400, 64)), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
updates = 0
with gpudiag.profile("run", warmup=3, steps=5, active=3, model=model, batch_size=8) as prof:
    for (x,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            prof.step()
            updates += 1
print("updates", updates)
time.sleep(0.5)
torch.distributed.destroy_process_group()
"""

#: The program, its launcher, the number of ranks, the samples per batch and the number of model updates. An update has
#: two batches. The training of Transformers, which has 40 updates, ends when the measurement is done.
CASES = {
    "lightning": (LIGHTNING, (), 1, 8, 30),
    "transformers": (TRANSFORMERS, TORCHRUN, 2, 4, 1 + 3 + 5 + 3 + 2 * (2 + 3)),
    "accelerate": (ACCELERATE, TORCHRUN, 2, 4, 25),
}


@pytest.mark.parametrize("case", CASES)
def test_trainer_steps_are_model_updates(case: str, tmp_path: Path) -> None:
    program, launcher, ranks, samples, updates = CASES[case]
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    words = [str(PYTHON), *launcher, "train.py"]
    changes = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment(**changes), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"updates {updates}\n" in done.stdout
    assert done.stderr.count("next: gpudiag analyze run\n") == 1
    run = read_json(tmp_path / "run" / "run.json", RunRecord, RUN_SCHEMA)
    assert (run.status, run.world_size, run.batch_size_per_device) == ("complete", ranks, 2 * samples)
    assert run.model is not None
    assert run.model.parameters == 64 * 65
    for rank in run.ranks:
        assert rank.unprofiled is not None
        assert rank.timed is not None
        assert rank.timed.input_ms is not None
        assert len(rank.timed.input_ms) == len(rank.unprofiled.step_ms) == 5
        # gpudiag times the fetches of both batches, although the trainer's own code makes them.
        assert min(rank.timed.input_ms) > 0
        # Forward and the weights' gradients of both batches are counted; inputs have no gradients.
        assert rank.flops is not None
        assert rank.flops.by_precision == {"fp32": 2 * 2 * 2 * samples * 64 * 64}
    analysis = gpudiag.analyze(tmp_path / "run")
    assert analysis.ranks_present == tuple(range(ranks))
    # The input wait within one analysed step depends on the machine: under load it may be hidden entirely.
    assert analysis.steps.analysed >= 1


SLOW_LIGHTNING = """
import time
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

class Small(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
    def training_step(self, batch, index):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

def collate(samples):
    time.sleep(0.01)  # slow
    return torch.stack([values for values, in samples])

trainer = Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                  enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Small(), DataLoader(TensorDataset(torch.randn(8 * 200, 64)), batch_size=8, collate_fn=collate))
"""

SLOW_TRANSFORMERS = """
import time
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
    def forward(self, x, labels=None):
        return {"loss": self.layer(x).square().mean()}

class Slow(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        self.write(state)
    def write(self, state):
        time.sleep(0.01)  # slow

rows = [{"x": torch.randn(64), "labels": torch.zeros(1)} for _ in range(8 * 200)]
arguments = TrainingArguments("out", per_device_train_batch_size=8, num_train_epochs=1, use_cpu=True, report_to=[],
                              save_strategy="no", disable_tqdm=True)
Trainer(Small(), arguments, train_dataset=rows, callbacks=[Slow()]).train()
"""


@pytest.mark.parametrize(
    ("program", "code"),
    [(SLOW_LIGHTNING, "input-bound"), (SLOW_TRANSFORMERS, "host-stall")],
    ids=["collate", "callback"],
)
def test_line_in_a_trainers_callback_or_collator_is_named(program: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    options = ("-m", "gpudiag", "profile", "--stop-after", "--warmup", "2", "--steps", "8", "--output", "run", "--")
    words = [str(PYTHON), *options, str(PYTHON), "train.py"]
    changes = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment(**changes), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    line = next(number for number, text in enumerate(program.splitlines(), 1) if text.endswith("# slow"))
    first = gpudiag.analyze(tmp_path / "run").findings[0]
    assert first.source is not None, first
    assert (first.code, Path(first.source.file).name, first.source.line) == (code, "train.py", line)
