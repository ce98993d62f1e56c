"""Train a small model with one problem on a known line that the loop calls only through other code.

    python benchmarks/more_line_faults.py --fault transform [--fixed] [--steps 400] [--ms 20]

`judge_lines.py --script benchmarks/more_line_faults.py` judges the findings. The line of each problem ends in a comment
`# fault: NAME`. Most problems take `--ms` milliseconds per step.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--fault", required=True)
parser.add_argument("--fixed", action="store_true", help="train without the problem")
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--ms", type=float, default=20.0, help="how long the problem takes where that can be chosen")
parser.add_argument("--rank", type=int, default=-1, help="only this rank has the problem; -1: all ranks")
args = parser.parse_args()

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
DEVICE = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else "cpu"
WIDTH, BATCH = 256, 16
WORKERS = {"transform-2": 2, "spawned": 2}
NOTES = tempfile.TemporaryFile("w")  # noqa: SIM115  # open until the program ends
HISTORY = {f"layer{number}": list(range(400)) for number in range(40)}
MATRIX = np.random.default_rng(0).standard_normal((220, 220))


def has(*faults: str) -> bool:
    """Return whether `args.fault` is one of `faults` and the current rank has this fault now."""
    return args.fault in faults and not args.fixed and args.rank in {-1, RANK}


def repeats(ms_of_one: float) -> range:
    """Return the range of repetitions (at least one) with which work of `ms_of_one` ms takes `--ms` in total."""
    return range(max(1, round(args.ms / ms_of_one)))


def crop(sample: list[float]) -> list[float]:
    """Select a part of a sample."""
    return sample[:WIDTH]


def jitter(sample: list[float]) -> list[float]:
    """Transform a sample; with a fault in transforms, repeat the transform for the sample's share of `--ms`."""
    end = time.perf_counter() + max(1, WORKERS.get(args.fault, 0)) * args.ms / BATCH / 1e3
    while has("transform", "transform-2", "spawned") and time.perf_counter() < end:
        sample = [number * 1.0001 for number in sample]  # fault: transform transform-2 spawned
    return sample


class Compose:
    """Apply transforms in turn."""

    def __init__(self, *transforms: Callable[[list[float]], list[float]]) -> None:
        self.transforms = transforms

    def __call__(self, sample: list[float]) -> list[float]:
        """Return the sample after all transforms."""
        for transform in self.transforms:
            sample = transform(sample)
        return sample


class Samples(Dataset[Tensor]):
    """A dataset of transformed samples."""

    def __init__(self) -> None:
        self.transform = Compose(crop, jitter)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Tensor:
        sample = [index % 7 / 7.0] * (WIDTH + 8)
        return torch.tensor(self.transform(sample))


def prefetched(loader: Any) -> Iterator[Tensor]:
    """Yield batches, as a prefetching generator does. With the fault `generator`, sleep `--ms` before each batch."""
    for batch in loader:
        if has("generator"):
            time.sleep(args.ms / 1e3)  # fault: generator
        yield batch.to(DEVICE)


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Imitate a decorator that reports each step to a server. With the fault `decorator`, wait `--ms` for a process."""

    @functools.wraps(function)
    def wrapper(*values: Any) -> Any:
        result = function(*values)
        if has("decorator"):
            subprocess.run(["sleep", str(args.ms / 1e3)], check=True)  # fault: decorator
        return result

    return wrapper


class Callback:
    """Base class of callbacks, which does nothing after a step."""

    def on_step_end(self, step: int) -> None:
        """Do nothing; subclasses override this method."""


class Recorder(Callback):
    """Imitate a callback that encodes the whole history of the training as JSON after each step."""

    def on_step_end(self, step: int) -> None:
        """Encode the history, with the fault `callback`."""
        if has("callback"):
            self.sent = len(self.encode(step))

    def encode(self, step: int) -> str:
        """Return the history as JSON."""
        text = ""
        for _ in repeats(1.5):
            text = json.dumps({"step": step, "history": HISTORY})  # fault: callback
        return text


class Printer(Callback):
    """Imitate a callback that prints to a file and waits for the disk after each line."""

    def on_step_end(self, step: int) -> None:
        """Print 2 x `--ms` lines, with the fault `flushes`."""
        if has("flushes"):
            for number in range(int(2 * args.ms)):
                print("step", step, "value", number, file=NOTES)
                NOTES.flush()
                os.fsync(NOTES.fileno())  # fault: flushes


def spectrum() -> float:
    """Compute the largest singular value of a matrix repeatedly for `--ms`, and return it."""
    largest = 0.0
    for _ in repeats(12.0):
        largest = float(np.linalg.svd(MATRIX, compute_uv=False)[0])  # fault: numpy
    return largest


@contextlib.contextmanager
def measured() -> Iterator[None]:
    """Imitate a timer around a block. With the fault `manager`, sleep `--ms` at the end of the block."""
    yield
    if has("manager"):
        time.sleep(args.ms / 1e3)  # fault: manager


class Slow(nn.Module):
    """A layer that returns its input. With the fault `forward`, the layer first computes in Python."""

    def forward(self, batch: Tensor) -> Tensor:
        """Return the batch; with the fault, first compute."""
        if has("forward"):
            self.statistics()
        return batch

    def statistics(self) -> dict[int, float]:
        """Compute a number for each row in Python, repeatedly for `--ms`."""
        means = {}
        for _ in repeats(1.0):
            for row in range(60):
                means[row] = float(sum(range(1200)))  # fault: forward
        return means


def warmup(_step: int) -> float:
    """Return the factor of the learning rate. With the fault `schedule`, first sleep for `--ms`."""
    if has("schedule"):
        time.sleep(args.ms / 1e3)  # fault: schedule
    return 1.0


@counted
def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> Tensor:
    """Train with one batch."""
    with measured():
        optimizer.zero_grad()
        loss: Tensor = model(batch).square().mean()
        if has("numpy"):
            spectrum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        optimizer.step()
    return loss.detach()


def train() -> None:
    """Train the model."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    model: nn.Module = nn.Sequential(Slow(), *layers).to(DEVICE)
    model = DistributedDataParallel(model) if WORLD > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup)
    context = "spawn" if args.fault == "spawned" else None
    loader = DataLoader(Samples(), BATCH, num_workers=WORKERS.get(args.fault, 0), multiprocessing_context=context)
    callbacks = [Callback(), Recorder(), Printer()]
    for step, batch in enumerate(prefetched(loader)):
        train_step(model, optimizer, batch)
        scheduler.step()
        for callback in callbacks:
            callback.on_step_end(step)
        if has("thread"):
            time.sleep(args.ms / 1e3)  # fault: thread
        if step + 1 == args.steps:
            break


def main() -> None:
    """Train in the main thread, or with the fault `thread` in another thread."""
    if WORLD > 1:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if args.fault == "thread":
        trainer = threading.Thread(target=train)
        trainer.start()
        trainer.join()
    else:
        train()
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
