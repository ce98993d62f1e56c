"""Provide user-defined functions for `gpudiag profile tests.commands.own_training:...`."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gpudiag


def main() -> None:
    """Train over epochs, with a user-defined range."""
    print("a word from the user's code")  # noqa: T201 # goes to the rank's log
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)))
    with gpudiag.profile("ignored under gpudiag", model=model, batch_size=64) as prof:
        for _ in range(1000):
            for batch in prof.steps([torch.randn(64, 256)] * 50):
                with gpudiag.range("augment"):
                    batch = batch + 1  # noqa: PLW2901 # typical user code
                model(batch).sum().backward()
    del model  # before the process group is closed; `PytorchStrategy.close` explains the order
    dist.destroy_process_group()


def uneven() -> None:
    """End one rank's loader during warm-up; the ranks do not communicate."""
    dist.init_process_group("gloo")
    length = 4 if os.environ["RANK"] == "1" else 1_000_000
    with gpudiag.profile() as prof:
        for _ in prof.steps(range(length)):
            time.sleep(0.005)


def hangs() -> None:
    """Hang one rank in its fifth step."""
    dist.init_process_group("gloo")
    with gpudiag.profile() as prof:
        for step in prof.steps(range(1_000_000)):
            time.sleep(1000 if step == 5 and os.environ["RANK"] == "1" else 0.005)


def endless() -> None:
    """Time steps on both ranks until stopped, with a DataLoader worker per rank; print when unprofiled steps begin."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    # DDP is not used, because DDP imports the compiler, which would take a third of the start time.
    model = nn.Linear(64, 64)
    samples = torch.utils.data.TensorDataset(torch.ones(1_000_000, 64))
    loader = torch.utils.data.DataLoader(samples, batch_size=16, num_workers=1)
    with gpudiag.profile(warmup=5, steps=10_000_000) as prof:
        for number, (batch,) in enumerate(prof.steps(loader)):
            model(batch).sum().backward()
            dist.all_reduce(model.weight.grad)
            if number == 20:
                print("has timed steps")  # noqa: T201 # goes to the rank's log


def changeable(*, fused: bool = False) -> None:
    """Train with steps of 12 ms, or of 4 ms with the change `fused`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    with gpudiag.profile(model=model) as prof:
        for batch in prof.steps([torch.randn(16, 64)] * 100_000):
            time.sleep(0.004 if fused else 0.012)
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
    del model  # before the process group is closed; `PytorchStrategy.close` explains the order
    dist.destroy_process_group()
