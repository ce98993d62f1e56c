"""Training scripts that know nothing of gpudiag, each with a fault of its own: is the first finding right?

    python benchmarks/unseen_jobs.py [--jobs gan,lengths] [--keep DIR] [--rounds 2]

Each job runs twice. First alone, in blocks of ten steps without the fault and with it by turns, which says what the
fault costs. Then with it, unchanged, under `gpudiag profile -- …`. On a machine that others use too, compare shares of
the step: both runs are slowed down. `reader` is one process, the others are two that exchange over gloo.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, TensorDataset

FAULT = "UNSEEN_FAULT"
BLOCK, SKIPPED = 10, 3
#: A job: given its rank and whether the fault is on, it yields after each step.
Loop = Callable[[int, Callable[[], bool]], Iterator[None]]
SCRATCH = Path(tempfile.gettempdir())


def _trained(loss: Tensor, *optimizers: torch.optim.Optimizer) -> None:
    loss.backward()  # type: ignore[no-untyped-call]  # torch's own
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def _mlp(*widths: int) -> nn.Sequential:
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.GELU())]
    return nn.Sequential(*layers[:-1])


def gan(rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """Two models, two optimizers; rank 0 writes sheets of samples."""
    maker, critic = DistributedDataParallel(_mlp(64, 256, 784)), DistributedDataParallel(_mlp(784, 512, 1))
    of_maker, of_critic = torch.optim.Adam(maker.parameters()), torch.optim.Adam(critic.parameters())
    while True:
        made = maker(torch.randn(128, 64))
        _trained(critic(made.detach()).mean() - critic(torch.randn(128, 784)).mean(), of_critic)
        _trained(-critic.module(made).mean(), of_maker)
        of_critic.zero_grad()
        if rank == 0 and bad():
            np.savez_compressed(SCRATCH / "sheet.npz", sheet=made.detach().repeat(6, 1).numpy().astype(np.float16))
        yield


def lengths(rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """An LSTM language model; rank 1 has the long half of data sorted by length."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedded, self.recurrent = nn.Embedding(1000, 96), nn.LSTM(96, 160, batch_first=True)
            self.out = nn.Linear(160, 1000)

        def forward(self, words: Tensor) -> Tensor:
            return self.out(self.recurrent(self.embedded(words))[0])  # type: ignore[no-any-return]

    model = DistributedDataParallel(Model())
    optimizer = torch.optim.Adam(model.parameters())
    while True:
        words = torch.randint(0, 1000, (16, 54 if rank == 1 and bad() else 22))
        _trained(functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten()), optimizer)
        yield


def collecting(rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """Reinforcement learning; rank 1 has a replay buffer of Python objects and collects garbage."""
    buffer = [{"state": [i], "reward": (i,)} for i in range(60_000)] if rank == 1 else []
    model = DistributedDataParallel(_mlp(64, 512, 512, 6))
    optimizer = torch.optim.RMSprop(model.parameters())
    while True:
        values = model(torch.randn(256, 64)).log_softmax(-1)
        if buffer and bad():
            gc.collect()
        _trained(-(values[:, 0] * torch.randn(256)).mean(), optimizer)
        yield


def spectra(rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """An auto-encoder; rank 1 looks at the spectra of what it makes, after the update."""
    model = DistributedDataParallel(_mlp(1024, 512, 64, 512, 1024))
    optimizer = torch.optim.Adam(model.parameters())
    while True:
        made = model(torch.randn(64, 1024))
        _trained(made.square().mean(), optimizer)
        for _ in range(4 if rank == 1 and bad() else 0):
            torch.fft.rfft(made.detach().double(), n=4096).abs().topk(8, dim=1).values.sum().item()
        yield


def own_sum(rank: int, bad: Callable[[], bool]) -> Iterator[None]:  # noqa: ARG001  # as of the others
    """Data parallelism by hand; the parameters are averaged too."""
    model = _mlp(3072, 512, 512, 10)
    optimizer = torch.optim.Adam(model.parameters())
    while True:
        optimizer.zero_grad()
        model(torch.randn(96, 3072)).logsumexp(-1).mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        for parameter in model.parameters():
            for _ in range(3 if bad() else 0):
                dist.all_reduce(parameter.data)
                parameter.data /= 2
        yield


def sharded(rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """FSDP; rank 1 has long documents, cut into words in the loop."""
    mesh = init_device_mesh("cpu", (2,))
    model = nn.Sequential(nn.Embedding(1000, 128), *(_mlp(128, 512, 128) for _ in range(3)), nn.Linear(128, 1000))
    for block in list(model)[1:4]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    known = {f"word{i}": i for i in range(1000)}
    while True:
        text = " ".join([*known] * (480 if rank == 1 and bad() else 1))
        words = torch.tensor([known.get(word.strip().lower(), 0) for word in text.split()][:512])
        _trained(functional.cross_entropy(model(words[:-1]), words[1:]), optimizer)
        yield


def after_update(rank: int, bad: Callable[[], bool]) -> Iterator[None]:
    """A DataLoader, zero_grad first; after the update rank 0 pickles its history."""
    history = [{"step": i, "values": [float(i)] * 8} for i in range(9000)]
    loader = DataLoader(TensorDataset(torch.randn(960, 300), torch.randint(0, 9, (960,))), batch_size=48)
    model = DistributedDataParallel(_mlp(300, 900, 9))
    optimizer = torch.optim.Adam(model.parameters())
    while True:
        for inputs, labels in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]  # torch's own
            optimizer.step()
            if rank == 0 and bad():
                (SCRATCH / "history.pickle").write_bytes(pickle.dumps(history))
            yield


def jitter(rank: int, bad: Callable[[], bool]) -> Iterator[None]:  # noqa: ARG001  # as of the others
    """A convolutional net; all ranks change each pixel in Python, between taking the batch and the forward pass."""
    layers = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 196, 10))
    model, images = DistributedDataParallel(nn.Sequential(*layers)), torch.rand(256, 1, 28, 28)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    while True:
        batch = images[torch.randint(0, 256, (64,))]
        if bad():
            rows = [[min(1.0, pixel * 1.01 + 0.001) for pixel in row] for row in batch.flatten(1).tolist()]
            batch = torch.tensor(rows).view_as(batch)
        _trained(functional.cross_entropy(model(batch), torch.randint(0, 10, (64,))), optimizer)
        yield


class _Files(Dataset[Tensor]):
    """Samples whose storage answers slowly."""

    def __init__(self, bad: Callable[[], bool]) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 320

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(0.0025 if self.bad() else 0.0)
        return torch.full((3, 32, 32), index / 320)


def reader(rank: int, bad: Callable[[], bool]) -> Iterator[None]:  # noqa: ARG001  # as of the others
    """One process whose DataLoader has no workers."""
    layers = (nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
    model = nn.Sequential(*layers)
    model(torch.zeros(1, 3, 32, 32))
    optimizer = torch.optim.Adam(model.parameters())
    while True:
        for images in DataLoader(_Files(bad), batch_size=16):
            _trained(model(images).logsumexp(-1).mean(), optimizer)
            yield


#: By job, its loop and what is right: code, late ranks (none: all alike), causes.
JOBS: dict[str, tuple[Loop, str, tuple[int, ...], tuple[str, ...]]] = {
    "gan": (gan, "straggler", (0,), ("stall", "input")),
    "lengths": (lengths, "straggler", (1,), ("compute",)),
    "collecting": (collecting, "straggler", (1,), ("stall",)),
    "spectra": (spectra, "straggler", (1,), ("compute",)),
    "own_sum": (own_sum, "communication-bound", (), ("transfer",)),
    "sharded": (sharded, "straggler", (1,), ("input", "stall")),
    "after_update": (after_update, "straggler", (0,), ("stall",)),
    "jitter": (jitter, "host-stall", (), ("unmarked time within the step",)),
    "reader": (reader, "input-bound", (), ("loader",)),
}


def train(loop: Loop) -> None:
    """The script itself: as long as it is let, or for so many rounds of four blocks that are timed."""
    fault = os.environ.get(FAULT, "on")
    rank = int(os.environ.get("RANK", "0"))
    steps, times = 0, dict[int, list[float]]()
    torch.manual_seed(rank)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")

    def bad() -> bool:
        return fault == "on" or (steps // BLOCK) % 4 in {1, 2}

    before = time.perf_counter()
    for _ in loop(rank, bad):
        if fault != "on" and torch.cuda.is_available() and steps % BLOCK in {SKIPPED - 1, BLOCK - 1}:
            torch.cuda.synchronize()  # what a block's host is ahead belongs to the block
        now = time.perf_counter()
        if steps % BLOCK >= SKIPPED:
            times.setdefault(steps // BLOCK, []).append(1e3 * (now - before))
        steps, before = steps + 1, now
        if fault != "on" and steps == 4 * BLOCK * int(fault):
            break
    if rank == 0:
        print(json.dumps([statistics.fmean(times[block]) for block in sorted(times)]))
    if dist.is_initialized():
        dist.destroy_process_group()


def judge(script: list[str], rounds: int, run_dir: Path) -> tuple[dict[str, object], list[dict[str, Any]]]:
    """What the fault costs, and what is found of it: a row about the first finding, and all that gain anything."""
    around = {**os.environ, "OMP_NUM_THREADS": "1"}
    timed = subprocess.run(script, env={**around, FAULT: str(rounds)}, check=True, capture_output=True, text=True)
    blocks = np.array(json.loads(timed.stdout.splitlines()[-1])).reshape(-1, 4)
    clean, faulty = float(blocks[:, [0, 3]].mean()), float(blocks[:, [1, 2]].mean())
    profile = [sys.executable, "-m", "gpudiag", "profile", "--stop-after", "--output", str(run_dir), "--", *script]
    subprocess.run(profile, env={**around, FAULT: "on"}, check=True, capture_output=True)
    analysis = json.loads((run_dir / "analysis.json").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = [one for one in analysis["findings"] if one["recoverable_ms_per_step"]]
    finding = next(iter(found), {})
    row = {
        "step_ms": round(faulty, 1),
        "costs_ms": round(faulty - clean, 1),
        "costs_percent": round(100 * (faulty - clean) / faulty),
        "found": [finding.get(key) for key in ("code", "ranks", "cause", "confidence", "place")],
        "found_ms": round(finding.get("recoverable_ms_per_step") or 0.0, 1),
        "found_percent": round(finding.get("recoverable_percent") or 0.0),
    }
    return row, found


def is_right(job: str, found: list[dict[str, Any]]) -> bool:
    """Whether the first is the finding that this job has to have."""
    _, code, ranks, causes = JOBS[job]
    first = next(iter(found), None)
    if first is None or first["code"] != code or first["cause"] not in causes:
        return False
    return not ranks or first["ranks"] == [*ranks]


def asked(description: str | None, jobs: Collection[str]) -> argparse.Namespace:
    """What to do with which of these jobs: `jobs`, `rounds`, `keep`, and `train` in a script itself."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default=",".join(jobs))
    parser.add_argument("--rounds", type=int, default=2, help="of four blocks of ten steps")
    parser.add_argument("--keep", type=Path, help="leave the run directories here")
    parser.add_argument("--train", choices=jobs, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    given = asked(__doc__, JOBS)
    if given.train:
        train(JOBS[given.train][0])
        return
    torchrun = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=127.0.0.1:0",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        for job in given.jobs.split(","):
            script = [sys.executable, *([] if job == "reader" else torchrun), __file__, "--train", job]
            row, found = judge(script, given.rounds, (given.keep or Path(scratch)) / job)
            print(json.dumps({"job": job, **row, "right": is_right(job, found)}), flush=True)


if __name__ == "__main__":
    main()
