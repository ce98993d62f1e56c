"""Provide slow training scripts without gpudiag calls, each with one cause: `torchrun slow_scripts.py KIND`.

The scripts run on GPUs under NCCL if available, otherwise on CPUs under gloo, and train for SECONDS_TO_TRAIN.
"""

from __future__ import annotations

import logging
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

ON_GPU = torch.cuda.is_available()
#: Sizes with which a step takes some milliseconds on a GPU or a CPU.
WIDTH, LAYERS, BATCH = (2048, 8, 1024) if ON_GPU else (256, 4, 64)
#: Duration of the injected fault in seconds; it is at least as long as a step.
FAULT_S = 0.02

logger = logging.getLogger("train")


class Samples(Dataset[torch.Tensor]):
    """A dataset of equal batches, each of which takes `seconds` to make."""

    def __init__(self, seconds: float, *, pinned: bool = False) -> None:
        self.seconds = seconds
        self.batch = torch.randn(BATCH, WIDTH)
        if pinned:
            self.batch = self.batch.pin_memory()

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.seconds:
            time.sleep(self.seconds)
        return self.batch


def slow_communication(_state, bucket):  # type: ignore[no-untyped-def]  # DDP takes no annotations that are text
    """Run all-reduces of twelve unused buffers, and then the all-reduce of DDP's hook."""
    world = dist.get_world_size()
    spare = [bucket.buffer().clone() for _ in range(12)]
    for work in [dist.all_reduce(buffer, async_op=True) for buffer in spare]:
        work.wait()
    done = dist.all_reduce(bucket.buffer().div_(world), async_op=True).get_future()
    return done.then(lambda future: future.value()[0])


def network() -> nn.Sequential:
    """Return a model with several layers of equal width."""
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers)


def train(kind: str, seconds: float) -> None:
    """Train one rank for `seconds` with the fault `kind`."""
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    dist.init_process_group("nccl" if ON_GPU else "gloo")
    device = torch.device("cuda", local) if ON_GPU else torch.device("cpu")
    if ON_GPU:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    torch.manual_seed(7)
    model = DistributedDataParallel(network().to(device))
    if kind == "slow-exchange":
        model.register_comm_hook(None, slow_communication)
    late = FAULT_S if kind == "few-workers" or (kind == "late-loader" and rank == 1) else 0.0
    # With `few-workers` one worker needs FAULT_S for each batch. With `late-loader` there is no worker, so rank 1
    # fetches on the training thread. With `item` the memory is pinned, because copies from pageable memory would wait
    # for the device too.
    samples = Samples(late, pinned=ON_GPU and kind == "item")
    loader = DataLoader(samples, batch_size=None, num_workers=1 if kind == "few-workers" else 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    log = logging.FileHandler(os.devnull)
    logger.addHandler(log)
    until = time.monotonic() + seconds
    for step, host in enumerate(loader):
        batch = host.to(device, non_blocking=True)
        loss = model(batch).square().mean()
        if kind == "heavy-rank" and rank == 1:
            for _ in range(4):
                loss = loss + 1e-6 * model.module(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if kind == "item":
            for parameter in model.parameters():
                assert parameter.grad is not None
                logger.debug("%s", parameter.grad.norm().item())
        if kind == "logging" and rank == 0:
            write_log(step)
        optimizer.step()
        # The check is rare, because it waits for the device and for the other ranks.
        if step % 50 == 0 and all_done(time.monotonic() > until, device):
            break
    del model  # before the process group is closed; `PytorchStrategy.close` explains the order
    dist.destroy_process_group()


def write_log(step: int) -> None:
    """Simulate a log on a slow disk."""
    logger.warning("step %d", step)
    time.sleep(FAULT_S)


def all_done(mine: bool, device: torch.device) -> bool:
    """Return whether any rank must end (`mine`: this rank must), so that all ranks end at the same step."""
    flag = torch.tensor(float(mine), device=device)
    dist.all_reduce(flag)
    return bool(flag.item())


if __name__ == "__main__":
    train(sys.argv[1], float(os.environ.get("SECONDS_TO_TRAIN", "60")))
