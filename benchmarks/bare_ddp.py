"""Train ResNet-50 in plain DDP, bf16, channels last: the reference that `gpudiag scale` must match within 3 %.

    torchrun --nproc-per-node 4 benchmarks/bare_ddp.py [--steps 100] [--batch 64]
    gpudiag scale resnet50 --devices 4 --strategies nccl --precision bf16 --memory-format nhwc --profile none

The model is gpudiag's and everything else is PyTorch's: there are no sessions, ranges or hooks of gpudiag. The batch is
on the device, and the device is synchronized only before and after the timed steps. `bench_ddp.py` compares
communication only, alternately in one process. This program compares whole programs.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from gpudiag.training.models.registry import load_workload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=40)
    parser.add_argument("--batch", type=int, default=64)
    given = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    torch.manual_seed(0)
    workload = load_workload("resnet50", on_gpu=on_gpu)
    bare = workload.model().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in torch's stubs
    model = DistributedDataParallel(bare, device_ids=[device] if on_gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    images = torch.randint(0, 256, (given.batch, 3, 224, 224), dtype=torch.uint8, device=device)
    labels = torch.randint(0, 1000, (given.batch,), device=device)

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            inputs = workload.prepare(images).contiguous(memory_format=torch.channels_last)
            loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def settle() -> None:
        if on_gpu:
            torch.cuda.synchronize(device)
        dist.barrier()

    for _ in range(given.warmup):
        step()
    settle()
    began = time.perf_counter()
    for _ in range(given.steps):
        step()
    settle()
    seconds = time.perf_counter() - began
    if dist.get_rank() == 0:
        world = dist.get_world_size()
        samples_per_s = given.steps * given.batch * world / seconds
        print(json.dumps({"devices": world, "samples_per_s": samples_per_s, "step_ms": 1e3 * seconds / given.steps}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
