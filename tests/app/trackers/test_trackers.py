"""Test `gpudiag log` and `log_to=` offline with the real libraries, in other environments (`make clients trainers`)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import gpudiag
from gpudiag.app.trackers.content import COLUMNS, metrics_of
from tests.cli_process import SECONDS, environment

ROOT = Path(__file__).parents[3]
CLIENTS = ROOT / "build" / "clients-venv"
TRAINERS = ROOT / "build" / "trainers-venv"
PYTHON = CLIENTS / "bin" / "python"
TRACES = ROOT / "tests" / "traces" / "gloo_dataloader"

pytestmark = [
    pytest.mark.processes,
    pytest.mark.xdist_group("processes"),
    pytest.mark.skipif(not PYTHON.exists(), reason="make clients has not been run"),
]

OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
}


def run(python: Path, *words: str, cwd: Path, path: str = str(ROOT)) -> subprocess.CompletedProcess[str]:
    """Run an interpreter offline with arguments `words`, and check that it succeeds."""
    done = subprocess.run(
        [str(python), *words],
        cwd=cwd,
        env=environment(PYTHONPATH=path, **OFFLINE),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


READ_MLFLOW = """
import json, sys
import mlflow
client = mlflow.MlflowClient()
runs = [run for e in client.search_experiments() for run in client.search_runs([e.experiment_id])]
answer = []
for run in runs:
    path = client.download_artifacts(run.info.run_id, "gpudiag/findings.json")
    table = json.loads(open(path).read())
    pages = [file.path for file in client.list_artifacts(run.info.run_id, "gpudiag-report")]
    answer.append({"id": run.info.run_id, "name": run.info.run_name, "status": run.info.status,
                   "metrics": run.data.metrics, "rows": len(table["data"]), "columns": table["columns"], "pages": pages,
                   "experiment": client.get_experiment(run.info.experiment_id).name})
print(json.dumps(answer))
"""

#: W&B's offline file is a log of LevelDB with a header of 7 bytes: blocks of 32 KiB with pieces of records.
READ_WANDB = """
import json, pathlib, struct
from wandb.proto.wandb_internal_pb2 import Record

def records(data):
    at, piece = 7, b""
    while at < len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        piece += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield Record.FromString(piece)
            piece = b""

answer = {"history": {}, "artifacts": [], "runs": 0}
for path in pathlib.Path("wandb").glob("offline-run-*/*.wandb"):
    answer["runs"] += 1
    for record in records(path.read_bytes()):
        for item in record.history.item:
            answer["history"]["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
        artifact = record.artifact if record.HasField("artifact") else record.request.log_artifact.artifact
        if artifact.name:
            answer["artifacts"].append([artifact.type, [entry.path for entry in artifact.manifest.contents]])
print(json.dumps(answer))
"""

READ_TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
tags = events.Tags()
scalars = {tag: events.Scalars(tag)[-1].value for tag in tags["scalars"]}
texts = {tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in tags["tensors"]}
print(json.dumps({"scalars": scalars, "texts": texts}))
"""


def read(program: str, cwd: Path, *words: str) -> Any:
    return json.loads(run(PYTHON, "-c", program, *words, cwd=cwd).stdout.splitlines()[-1])


def test_mlflow_has_metrics_table_and_page(tmp_path: Path) -> None:
    log = ("-m", "gpudiag", "log", str(TRACES), "--to", "mlflow")
    done = run(PYTHON, *log, "--project", "speed", "--name", "first", cwd=tmp_path)
    (first,) = read(READ_MLFLOW, tmp_path)
    assert f"gpudiag: logged to new MLflow run {first['id']}\n" in done.stderr
    assert (first["experiment"], first["name"], first["status"]) == ("speed", "first", "FINISHED")
    analysis = gpudiag.analyze(TRACES)
    assert first["metrics"] == pytest.approx(metrics_of(analysis))
    assert (first["rows"], first["columns"]) == (len(analysis.findings), list(COLUMNS))
    assert first["pages"] == ["gpudiag-report/report.html"]


def test_wandb_has_metrics_table_and_page(tmp_path: Path) -> None:
    run(PYTHON, "-m", "gpudiag", "log", str(TRACES), "--to", "wandb", cwd=tmp_path)
    answer = read(READ_WANDB, tmp_path)
    assert answer["runs"] == 1
    analysis = gpudiag.analyze(TRACES)
    metrics = metrics_of(analysis)
    assert {name: answer["history"][name] for name in metrics} == pytest.approx(metrics)
    assert answer["history"]["gpudiag/findings/nrows"] == len(analysis.findings)
    assert ["report", ["report.html"]] in answer["artifacts"]


def test_tensorboard_shows_metrics_beside_those_of_its_own_writer(tmp_path: Path) -> None:
    write = """
from torch.utils.tensorboard import SummaryWriter
with SummaryWriter('runs/job') as writer:
    writer.add_scalar('loss', 1.5, 3)
"""
    run(PYTHON, "-c", write, cwd=tmp_path)
    done = run(PYTHON, "-m", "gpudiag", "log", str(TRACES), "--to", "tensorboard", "--name", "job", cwd=tmp_path)
    assert done.stderr == "gpudiag: logged to runs/job, for tensorboard --logdir runs\n"
    shown = read(READ_TENSORBOARD, tmp_path, "runs/job")
    metrics = metrics_of(gpudiag.analyze(TRACES))
    assert shown["scalars"] == pytest.approx({**metrics, "loss": 1.5}, rel=1e-5)
    assert "Communication adds" in shown["texts"]["gpudiag/verdict"]
    assert (tmp_path / "runs" / "job" / "report.html").stat().st_size > 10_000


def test_failures_of_a_tracker_are_two_lines(tmp_path: Path) -> None:
    words = [str(PYTHON), "-m", "gpudiag", "log", str(TRACES), "--to", "mlflow", "--run-id", "none"]
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(ROOT), **OFFLINE),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 5
    *_, message, hint = done.stderr.splitlines()
    assert message.startswith("gpudiag: mlflow failed: ")
    assert hint.startswith("  hint: ")


TRAIN = """
import mlflow
import torch
import wandb
from transformers import Trainer, TrainingArguments
import gpudiag

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
    def forward(self, x, labels=None):
        return {"loss": self.layer(x).square().mean()}

rows = [{"x": torch.randn(64), "labels": torch.zeros(1)} for _ in range(640)]
arguments = TrainingArguments("out", per_device_train_batch_size=8, num_train_epochs=1, use_cpu=True, report_to=[],
                              save_strategy="no", disable_tqdm=True)
run = wandb.init()
run.log({"loss": 1.0})
with mlflow.start_run() as active:
    trackers = ("wandb", "mlflow", "tensorboard")
    callback = gpudiag.TransformersCallback("run", warmup=3, steps=5, active=3, log_to=trackers)
    Trainer(Small(), arguments, train_dataset=rows, callbacks=[callback]).train()
run.finish()
print("mlflow", active.info.run_id)
"""


@pytest.mark.skipif(not TRAINERS.exists(), reason="make trainers has not been run")
def test_callback_logs_to_the_open_runs_of_the_training(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    libraries = next((CLIENTS / "lib").glob("python*/site-packages"))
    done = run(TRAINERS / "bin" / "python", "train.py", cwd=tmp_path, path=f"{ROOT}:{libraries}")
    assert done.stderr.count("gpudiag: logged to ") == 3, done.stderr
    (tracked,) = read(READ_MLFLOW, tmp_path)
    assert f"mlflow {tracked['id']}\n" in done.stdout
    kept = read(READ_WANDB, tmp_path)
    assert kept["runs"] == 1
    shown = read(READ_TENSORBOARD, tmp_path, "runs/run")
    step_ms = gpudiag.analyze(tmp_path / "run").steps.unprofiled_mean_ms
    for metrics in (tracked["metrics"], kept["history"], shown["scalars"]):
        assert metrics["step_time_ms"] == pytest.approx(step_ms, rel=1e-5)
        assert metrics["samples_per_s"] > 0
    assert (tmp_path / "run" / "report.html").is_file()


LIGHTNING = """
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import MLFlowLogger
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

logger = MLFlowLogger("lightning", tracking_uri="sqlite:///mlflow.db")
callback = gpudiag.LightningCallback("run", warmup=3, steps=5, active=3, log_to="mlflow")
trainer = Trainer(callbacks=[callback], max_epochs=1, accelerator="cpu", logger=logger, enable_checkpointing=False,
                  enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Small(), DataLoader(TensorDataset(torch.randn(640, 64)), batch_size=8))
print("mlflow", logger.run_id)
"""


@pytest.mark.skipif(not TRAINERS.exists(), reason="make trainers has not been run")
def test_callback_logs_to_the_run_of_lightnings_own_client(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LIGHTNING, encoding="utf-8")
    libraries = next((CLIENTS / "lib").glob("python*/site-packages"))
    done = run(TRAINERS / "bin" / "python", "train.py", cwd=tmp_path, path=f"{ROOT}:{libraries}")
    (tracked,) = read(READ_MLFLOW, tmp_path)
    assert f"mlflow {tracked['id']}\n" in done.stdout
    assert tracked["experiment"] == "lightning"
    assert tracked["metrics"]["step_time_ms"] > 0
