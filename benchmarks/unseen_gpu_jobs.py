"""Training scripts for one GPU that know nothing of gpudiag, each with a fault of its own: is the first finding right?

    python benchmarks/unseen_gpu_jobs.py [--jobs metrics,masks] [--keep DIR] [--rounds 2]

As unseen_jobs.py: each job runs alone, in blocks of ten steps without the fault and with it by turns, which says what
the fault costs, and then with it, unchanged, under `gpudiag profile -- …`. `alone` has none. Without a GPU they train
a smaller model on the CPU, where only that they run can be tried.
"""

from __future__ import annotations

import gc
import io
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from unseen_jobs import Loop, asked, judge, train

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
#: Width, words of a sample, samples of a batch, blocks, side of an image.
WIDTH, WORDS, SAMPLES, BLOCKS, SIDE = (1024, 512, 8, 8, 128) if DEVICE.type == "cuda" else (64, 32, 2, 2, 32)
CLASSES = 40


class Attention(nn.Module):
    """A block of a transformer whose mask is given to it."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Of [samples, words, width] and what each word sees, [words, words]; the shape stays."""
        shape = (x.shape[0], x.shape[1], 8, WIDTH // 8)
        query, key, value = (part.reshape(shape).transpose(1, 2) for part in self.mixed(self.before(x)).chunk(3, -1))
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        return x + self.wide(self.after(x))  # type: ignore[no-any-return]


class Language(nn.Module):
    """A small language model, in bf16 on GPUs; `mask` gives each block its mask."""

    def __init__(self, mask: Callable[[], Tensor]) -> None:
        super().__init__()
        self.embedded, self.out = nn.Embedding(4096, WIDTH), nn.Linear(WIDTH, 4096)
        self.blocks, self.mask = nn.ModuleList(Attention() for _ in range(BLOCKS)), mask
        self.to(DEVICE)

    def loss(self, words: Tensor) -> Tensor:
        """Of [samples, words + 1], each word to be told from those before it."""
        with torch.autocast(DEVICE.type, torch.bfloat16):
            x = self.embedded(words[:, :-1])
            for block in self.blocks:
                x = block(x, self.mask())
            return functional.cross_entropy(self.out(x).flatten(0, 1).float(), words[:, 1:].flatten())


def causal() -> Tensor:
    """bool[words, words]: what each word sees."""
    return torch.ones(WORDS, WORDS, dtype=torch.bool).tril()


def language() -> tuple[Language, torch.optim.Optimizer]:
    """The model and its optimizer; every word sees those before it."""
    mask = causal().to(DEVICE)
    model = Language(lambda: mask)
    return model, torch.optim.AdamW(model.parameters())


def words() -> Tensor:
    """A batch on the device."""
    return torch.randint(0, 4096, (SAMPLES, WORDS + 1), device=DEVICE)


def convolutional() -> nn.Module:
    """A convolutional net."""
    sizes = (3, 64, 128, 256, 512)
    layers: list[nn.Module] = []
    for one, other in itertools.pairwise(sizes):
        layers += [nn.Conv2d(one, other, 3, 2, 1, bias=False), nn.BatchNorm2d(other), nn.ReLU()]
        layers += [nn.Conv2d(other, other, 3, 1, 1, bias=False), nn.BatchNorm2d(other), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES)).to(DEVICE)


def trained(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One backward pass and one update."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch's own
    optimizer.step()


def alone(_rank: int, _bad: Callable[[], bool]) -> Iterator[None]:
    """A language model and nothing else: on a GPU its host is what it waits for."""
    model, optimizer = language()
    while True:
        trained(model.loss(words()), optimizer)
        yield


def metrics(_rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """A convolutional net; how many of each class were right is counted in Python."""
    model, counts = convolutional(), [0] * CLASSES
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    images, labels = torch.randn(64, 3, SIDE, SIDE, device=DEVICE), torch.randint(0, CLASSES, (64,), device=DEVICE)
    while True:
        out = model(images)
        trained(functional.cross_entropy(out, labels), optimizer)
        if bad():
            told = out.argmax(1)
            for one in range(CLASSES):
                counts[one] += int(((told == one) & (labels == one)).sum().item())
        yield


def masks(_rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """The mask is kept by the host as numbers, and copied for each block."""
    kept = torch.zeros(SAMPLES, 1, WORDS, WORDS).masked_fill(~causal(), float("-inf"))
    moved = kept.to(DEVICE)
    model = Language(lambda: kept.to(DEVICE) if bad() else moved)
    optimizer = torch.optim.AdamW(model.parameters())
    while True:
        trained(model.loss(words()), optimizer)
        yield


def allocator(_rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """The allocator gives all that it keeps back after each step."""
    model, optimizer = language()
    while True:
        trained(model.loss(words()), optimizer)
        if bad() and DEVICE.type == "cuda":
            torch.cuda.empty_cache()
        yield


def by_hand(_rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """Exponential averages of all parameters, one by one in five operations each."""
    model, optimizer = language()
    averages = [parameter.detach().clone() for parameter in model.parameters()]
    while True:
        trained(model.loss(words()), optimizer)
        with torch.no_grad():
            for average, parameter in zip(averages if bad() else (), model.parameters(), strict=False):
                apart = (parameter - average).mul(0.001).clamp(-1, 1)
                average.add_(apart).mul_(1.0)
        yield


class _Pictures(Dataset[tuple[Tensor, int]]):
    """Pictures that are cropped, flipped and blurred by NumPy."""

    def __init__(self, bad: Callable[[], bool]) -> None:
        self.bad, self.picture = bad, np.random.default_rng(7).random((3, SIDE + 16, SIDE + 16), np.float32)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = self.picture[:, 8:-8, 8:-8]
        for shift in range(1, 4 if self.bad() else 1):
            picture = 0.5 * picture + 0.25 * (np.roll(picture, shift, 1) + np.roll(picture, -shift, 2))
        return torch.from_numpy(picture.copy()), index % CLASSES


def augment(_rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """A DataLoader without workers that does too much to its samples."""
    model = convolutional()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    for images, labels in DataLoader(_Pictures(bad), batch_size=64, pin_memory=DEVICE.type == "cuda"):
        moved = images.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
        trained(functional.cross_entropy(model(moved[0]), moved[1]), optimizer)
        yield


def tokenize(_rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """Text is cut into words in the loop, by Python, before each step."""
    model, optimizer = language()
    known = {f"word{i}": i for i in range(4096)}
    text = " ".join([*known] * (1 + SAMPLES * (WORDS + 1) // 4096))
    ready = torch.tensor([known[word] for word in text.split()][: SAMPLES * (WORDS + 1)])
    while True:
        numbers = ready
        if bad():
            for _ in range(8):
                cut = [known.get(word.strip().lower(), 0) for word in text.split(" ")]
            numbers = torch.tensor(cut[: len(ready)])
        if DEVICE.type == "cuda":
            numbers = numbers.pin_memory()
        trained(model.loss(numbers.to(DEVICE, non_blocking=True).view(SAMPLES, WORDS + 1)), optimizer)
        yield


def saves(_rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """The model is saved, into memory, after each step."""
    model = convolutional()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    images, labels = torch.randn(64, 3, SIDE, SIDE, device=DEVICE), torch.randint(0, CLASSES, (64,), device=DEVICE)
    while True:
        trained(functional.cross_entropy(model(images), labels), optimizer)
        if bad():
            torch.save(model.state_dict(), io.BytesIO())
        yield


def nan_check(_rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """Each gradient is asked whether it is finite."""
    model, optimizer = language()
    while True:
        optimizer.zero_grad()
        model.loss(words()).backward()  # type: ignore[no-untyped-call]  # torch's own
        for parameter in model.parameters() if bad() else ():
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                parameter.grad = None
        optimizer.step()
        yield


def garbage(_rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """A buffer of Python objects, and a full collection in each step."""
    model, optimizer = language()
    buffer = [{"state": [i], "reward": (i,)} for i in range(100_000)]
    while True:
        trained(model.loss(words()), optimizer)
        if bad() and buffer:
            gc.collect()
        yield


#: By job, its loop and the codes that are right for it.
JOBS: dict[str, tuple[Loop, tuple[str, ...]]] = {
    "alone": (alone, ("launch-bound",)),
    "metrics": (metrics, ("host-sync",)),
    "masks": (masks, ("slow-copy",)),
    "allocator": (allocator, ("memory-allocation",)),
    "by_hand": (by_hand, ("launch-bound",)),
    "augment": (augment, ("input-bound",)),
    "tokenize": (tokenize, ("input-bound", "host-stall")),
    "saves": (saves, ("slow-copy", "host-stall")),
    "nan_check": (nan_check, ("host-sync", "launch-bound")),
    "garbage": (garbage, ("host-stall",)),
}


def main(description: str | None, program: str, jobs: dict[str, tuple[Loop, tuple[str, ...]]]) -> None:
    """Train the job that was asked for, or judge what is found of each."""
    given = asked(description, jobs)
    if given.train:
        train(jobs[given.train][0])
        return
    with tempfile.TemporaryDirectory() as scratch:
        for job in given.jobs.split(","):
            script = [sys.executable, program, "--train", job]
            row, found = judge(script, given.rounds, (given.keep or Path(scratch)) / job)
            others = [(one["code"], one["cause"], round(one["recoverable_ms_per_step"], 1)) for one in found[1:]]
            right = bool(found) and found[0]["code"] in jobs[job][1]
            print(json.dumps({"job": job, **row, "others": others, "right": right}), flush=True)


if __name__ == "__main__":
    main(__doc__, __file__, JOBS)
