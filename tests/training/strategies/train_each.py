"""Train a small model on one rank with several strategies in sequence, and print the loss of every step.

    python train_each.py RANK WORLD MEETING '{"device": "cpu", "strategies": [["cpu-reduce", {...}], ...]}'

For each strategy, the answer has the losses (mean over the ranks), the sum of each parameter's absolute values, the
communicated bytes, and the FLOPs of a step. The ranks train on different samples, so the loss curve is right only if
gradients are communicated.
"""

from __future__ import annotations

import json
import sys
import weakref
from contextlib import nullcontext
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from gpudiag.model.job import CommunicationOptions
from gpudiag.training.frameworks.pytorch.flops import FlopCounter
from gpudiag.training.strategies.registry import load_strategy
from tests.training.strategies.processes import tell

STEPS = 12
BATCHES = 4


def make_model() -> nn.Module:
    """Build a model with convolutions for channels-last, a buffer that changes, and layers that fill several
    buckets."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 36, 600),
        nn.ReLU(),
        nn.Linear(600, 600),
        nn.ReLU(),
        nn.Linear(600, 5),
    )


def make_data(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Make the batches of a rank."""
    generator = torch.Generator().manual_seed(rank)
    return [
        (torch.randn(8, 3, 8, 8, generator=generator), torch.randint(0, 5, (8,), generator=generator))
        for _ in range(BATCHES)
    ]


def train(rank: int, device: torch.device, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Train with one strategy, and return its entry of the answer; check that the reducer is freed."""
    exchange = CommunicationOptions(**options)
    strategy = load_strategy(name, device, exchange)
    strategy.open()
    bare = make_model().to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing from torch's stubs
    model = strategy.wrap(bare)
    reducer: Any = getattr(model, "reducer", None)
    left = None if reducer is None else weakref.ref(reducer)
    del reducer
    optimizer = strategy.optimizer(model, lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)
    data = make_data(rank)
    losses, share = [], exchange.accumulate
    counter = FlopCounter(bare)
    for step in range(STEPS):
        total = torch.zeros((), device=device)
        with counter if step == 1 else nullcontext():
            for part in range(share):
                inputs, target = data[(step * share + part) % BATCHES]
                with strategy.accumulating() if part < share - 1 else nullcontext():
                    loss = nn.functional.cross_entropy(model(inputs.to(device)), target.to(device)) / share
                    loss.backward()  # type: ignore[no-untyped-call]  # torch's own
                total += loss.detach()
            strategy.exchange(model)
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()
        losses.append(total)
    curve = torch.stack(losses)
    dist.all_reduce(curve)
    sums = []
    for parameter in bare.parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        sums.append(float(whole.detach().double().abs().sum()))
    exchanged = list(strategy.exchanged_bytes)
    del model
    strategy.release()
    assert left is None or left() is None, (
        "a reducer that is still alive would wait for the threads of its process group"
    )
    strategy.close()
    flops = msgspec.to_builtins(counter.result)
    return {"losses": (curve / dist_world).tolist(), "sums": sums, "exchanged_bytes": exchanged, "flops": flops}


if __name__ == "__main__":
    this_rank, dist_world, meeting, plan = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
    on_gpu = plan["device"] == "cuda"
    this_device = torch.device("cuda", this_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(this_device)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
    found = []
    for number, (strategy_name, strategy_options) in enumerate(plan["strategies"]):
        backend = "nccl" if on_gpu and strategy_name not in {"gloo", "independent"} else "gloo"
        dist.init_process_group(
            backend,
            init_method=f"file://{meeting}{number}",
            rank=this_rank,
            world_size=dist_world,
            device_id=this_device if backend == "nccl" else None,
        )
        found.append(train(this_rank, this_device, strategy_name, strategy_options))
    tell(found)
