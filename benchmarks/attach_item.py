"""What `.item()` costs in the slow script of that name, and what its copies from pageable memory do, on a GPU.

    torchrun --nproc-per-node 1 benchmarks/attach_item.py [--pairs 40]

The step of tests/training/attach/slow_scripts.py in four forms, each fault in it or left out, in blocks of 20 steps in
a random order, without a profiler. What a fault costs is the median over rounds of the step with it less that without,
once beside the other fault and once alone, with the interval that holds the true median at 95 %.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time

import torch
import torch.distributed as dist
from attach_costs import median_with_interval
from torch.nn.parallel import DistributedDataParallel

from tests.training.attach.slow_scripts import BATCH, ON_GPU, WIDTH, network

STEPS = 20
#: Are there calls of `.item()`, and are the copies from pageable memory?
Form = tuple[bool, bool]


class Training:
    """The script's model, and one step of it in any of the four forms."""

    def __init__(self, device: torch.device) -> None:
        self.model = DistributedDataParallel(network().to(device))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.device = device
        batch = torch.randn(BATCH, WIDTH)
        self.batches = {True: batch, False: batch.pin_memory() if ON_GPU else batch}

    def block(self, form: Form) -> float:
        """Milliseconds per step."""
        item, pageable = form
        self._ended()
        begin = time.perf_counter()
        for _ in range(STEPS):
            batch = self.batches[pageable].to(self.device, non_blocking=True)
            loss = self.model(batch).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            if item:
                for parameter in self.model.parameters():
                    assert parameter.grad is not None
                    parameter.grad.norm().item()
            self.optimizer.step()
        self._ended()
        return (time.perf_counter() - begin) / STEPS * 1e3

    def _ended(self) -> None:
        if ON_GPU:
            torch.cuda.synchronize()
        dist.barrier()


def cost(name: str, with_it: list[float], without: list[float]) -> str:
    """The median of the differences, and its interval."""
    middle, low, high = median_with_interval([a - b for a, b in zip(with_it, without, strict=True)])
    return f"{name:52} {middle:6.3f} ms [{low:.3f}, {high:.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40)
    pairs = parser.parse_args().pairs
    dist.init_process_group("nccl" if ON_GPU else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if ON_GPU else torch.device("cpu")
    if ON_GPU:
        torch.cuda.set_device(device)
    training, order = Training(device), random.Random(7)  # noqa: S311  # all ranks in the same order
    forms: list[Form] = [(True, True), (True, False), (False, True), (False, False)]
    for form in forms:
        training.block(form)
    times: dict[Form, list[float]] = {form: [] for form in forms}
    for _ in range(pairs):
        for form in order.sample(forms, len(forms)):
            times[form].append(training.block(form))
    if dist.get_rank() == 0:
        for (item, pageable), taken in times.items():
            print(f".item() {item!s:5}  pageable {pageable!s:5}  {statistics.median(taken):7.3f} ms a step")
        print(cost(".item(), beside copies from pageable memory", times[True, True], times[False, True]))
        print(cost(".item(), beside copies from pinned memory", times[True, False], times[False, False]))
        print(cost("copies from pageable memory, beside .item()", times[True, True], times[True, False]))
        print(cost("copies from pageable memory, without .item()", times[False, True], times[False, False]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
