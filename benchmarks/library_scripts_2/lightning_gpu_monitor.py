# mypy: ignore-errors
# ruff: noqa: ARG002, D102
"""Forecast electricity demand with a transformer and Lightning; a callback records the GPU's state with nvidia-smi."""

import argparse
import csv
import subprocess
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

QUERY = "utilization.gpu,memory.used,temperature.gpu,power.draw,clocks.sm"


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--history", type=int, default=168, help="hours")
    parser.add_argument("--horizon", type=int, default=24, help="hours")
    parser.add_argument("--series", type=int, default=32)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--max-steps", type=int, default=2000)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--output", type=Path, default=Path("output"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    parser.add_argument("--fixed", action="store_true", help="do not run nvidia-smi")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.history, args.width, args.layers, args.workers = 2, 24, 32, 2, 1
    return args


class Demand(Dataset):
    """Windows of a long random walk, in place of measured demand."""

    def __init__(self, args):
        self.args = args
        self.values = torch.randn(20_000, args.series).cumsum(0).mul(0.01)

    def __len__(self):
        return self.args.max_steps * self.args.batch_size

    def __getitem__(self, index):
        length = self.args.history + self.args.horizon
        window = self.values[(start := index * 7 % (20_000 - length)) : start + length]
        return window[: self.args.history], window[self.args.history :]


class Forecaster(lightning.LightningModule):
    """A transformer encoder over the history; the last hour's state predicts the horizon."""

    def __init__(self, args):
        super().__init__()
        self.args = args
        self.embed = nn.Linear(args.series, args.width)
        self.position = nn.Parameter(torch.zeros(args.history, args.width))
        layer = nn.TransformerEncoderLayer(
            args.width, args.width // 16, 4 * args.width, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, args.layers, enable_nested_tensor=False)
        self.head = nn.Linear(args.width, args.horizon * args.series)

    def forward(self, history):
        states = self.encoder(self.embed(history) + self.position)
        return self.head(states[:, -1]).view(-1, self.args.horizon, self.args.series)

    def training_step(self, batch, batch_idx):
        history, future = batch
        loss = functional.smooth_l1_loss(self(history), future)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.args.lr, fused=self.args.device.startswith("cuda"))


class GpuMonitor(Callback):
    """Write utilization, memory, temperature, power and clock to a CSV file after each batch."""

    def __init__(self, args):
        self.args = args
        self.file = (args.output / "gpu.csv").open("w", newline="", encoding="utf-8")
        self.writer = csv.writer(self.file)
        self.writer.writerow(["step", *QUERY.split(",")])

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if self.args.fixed:
            return
        command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits", "--id=0"]
        try:
            line = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        except FileNotFoundError:  # no NVIDIA driver here
            line = ""
        self.writer.writerow([trainer.global_step, *line.split(", ")])

    def on_train_end(self, trainer, module):
        self.file.close()


def main():
    args = parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    lightning.seed_everything(11)
    on_gpu = args.device.startswith("cuda")
    loader = DataLoader(
        Demand(args), args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=on_gpu,
        persistent_workers=True, drop_last=True,
    )  # fmt: skip
    trainer = lightning.Trainer(
        accelerator="gpu" if on_gpu else "cpu",
        devices=1,
        precision="bf16-mixed",
        max_steps=args.max_steps,
        log_every_n_steps=100,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=args.output,
        logger=CSVLogger(args.output),
        callbacks=[GpuMonitor(args), ModelCheckpoint(every_n_train_steps=1000)],
    )
    trainer.fit(Forecaster(args), loader)


if __name__ == "__main__":
    main()
