"""More training scripts for one GPU that know nothing of gpudiag, each with a fault: is the first finding right?

    python benchmarks/more_gpu_jobs.py [--jobs timing,offload] [--keep DIR] [--rounds 2]

As unseen_gpu_jobs.py; which findings are right was written down before any of these ran on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from unseen_gpu_jobs import CLASSES, DEVICE, SIDE, convolutional, language, main, trained, words
from unseen_jobs import Loop

ON_GPU = DEVICE.type == "cuda"


def pinned(_rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """A buffer of the host's is pinned before each step, and let go after it."""
    model, optimizer = language()
    buffer = torch.zeros(64 << 20, dtype=torch.uint8)
    while True:
        driver = torch.cuda.cudart() if ON_GPU and bad() else None  # type: ignore[no-untyped-call]
        if driver is not None:
            driver.cudaHostRegister(buffer.data_ptr(), buffer.numel(), 0)
        trained(model.loss(words()), optimizer)
        if driver is not None:
            driver.cudaHostUnregister(buffer.data_ptr())
        yield


def timing(_rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """Each part of a step is timed by the host, with the device waited for before and after."""
    model, optimizer = language()

    def look() -> None:
        if ON_GPU and bad():
            torch.cuda.synchronize()

    while True:
        batch = words()
        look()
        loss = model.loss(batch)
        look()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        look()
        optimizer.step()
        look()
        yield


def offload(_rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """The optimizer's copy of the model is in the host's memory, pageable: gradients go there, parameters come back."""
    model, optimizer = language()
    kept = [parameter.detach().cpu() for parameter in model.parameters()]
    while True:
        if not bad():
            trained(model.loss(words()), optimizer)
            yield
            continue
        optimizer.zero_grad()
        model.loss(words()).backward()  # type: ignore[no-untyped-call]  # torch's own
        with torch.no_grad():
            for own, parameter in zip(kept, model.parameters(), strict=True):
                if parameter.grad is not None:
                    own.add_(parameter.grad.cpu(), alpha=-1e-4)
                    parameter.copy_(own)
        yield


def micro_batches(_rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """A batch is trained on sample by sample, and the gradients are added up."""
    model, optimizer = language()
    while True:
        batch = words()
        optimizer.zero_grad()
        for part in batch.chunk(len(batch) if bad() else 1):
            (model.loss(part) * (len(part) / len(batch))).backward()  # type: ignore[no-untyped-call]  # torch's own
        optimizer.step()
        yield


class _Stored(Dataset[tuple[Tensor, int]]):
    """Images in files that are packed; or one of them, in memory."""

    def __init__(self, folder: Path, bad: Callable[[], bool]) -> None:
        self.folder, self.bad = folder, bad
        self.one = np.random.default_rng(3).random((3, SIDE, SIDE), np.float32)
        for number in range(64):
            np.savez_compressed(folder / f"{number}.npz", image=self.one)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not self.bad():
            return torch.from_numpy(self.one), index % CLASSES
        with np.load(self.folder / f"{index % 64}.npz") as stored:
            return torch.from_numpy(stored["image"]), index % CLASSES


def packed(_rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """Each image is a packed file, read where it is trained on."""
    model = convolutional()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    with TemporaryDirectory() as folder:
        for batch, labels in DataLoader(_Stored(Path(folder), bad), batch_size=32, pin_memory=ON_GPU):
            moved = batch.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
            trained(functional.cross_entropy(model(moved[0]), moved[1]), optimizer)
            yield


def norms(_rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """The norm of each parameter's gradient goes to the log, as a number."""
    model, optimizer = language()
    while True:
        optimizer.zero_grad()
        model.loss(words()).backward()  # type: ignore[no-untyped-call]  # torch's own
        log = [float(p.grad.norm()) for p in model.parameters() if p.grad is not None] if bad() else []
        optimizer.step()
        del log
        yield


#: By job, its loop and the codes that are right for it.
JOBS: dict[str, tuple[Loop, tuple[str, ...]]] = {
    "pinned": (pinned, ("memory-allocation",)),
    "timing": (timing, ("host-sync",)),
    "offload": (offload, ("slow-copy", "host-sync")),
    "micro_batches": (micro_batches, ("launch-bound",)),
    "packed": (packed, ("input-bound",)),
    "norms": (norms, ("host-sync", "launch-bound")),
}

if __name__ == "__main__":
    main(__doc__, __file__, JOBS)
