"""Record the traces in `gloo_dataloader/`: two CPU processes with DDP, a DataLoader, and one all-reduce.

torchrun --nproc-per-node 2 tests/traces/record_gloo.py OUT_DIRECTORY
python tests/traces/minify.py OUT_DIRECTORY/rank0.pt.trace.json.gz … --forget-host
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, TensorDataset

STEPS = 10


def main() -> None:
    """Train a small convolutional network for a few steps under the profiler, with shapes recorded."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(
        nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 30 * 30, 128), nn.ReLU(), nn.Linear(128, 10)
        ),
        bucket_cap_mb=2,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(1024, 3, 32, 32), torch.randint(0, 10, (1024,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=16, num_workers=1)
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule(wait=1, warmup=2, active=6),
        on_trace_ready=lambda done: done.export_chrome_trace(str(directory / f"rank{rank}.pt.trace.json.gz")),
    ) as profiler:
        for step, (batch, target) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(batch), target)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
            optimizer.step()
            dist.all_reduce(torch.full((1000,), loss.item()))
            profiler.step()
            if step == STEPS:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
