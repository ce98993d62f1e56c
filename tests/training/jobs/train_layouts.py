"""Train a small GPT on one rank with several layouts in sequence, and compare it with the same model in one process.

    python train_layouts.py RANK WORLD MEETING '[[{"pp": 2, "dp": 2}, false], ...]'

Each pair is a layout and whether the replicas are sharded (FSDP2). For each pair, the answer has the largest difference
of this rank's parameters from the undivided model's after some steps, and the median change of the parameters.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gpudiag.model.run import ParallelLayout
from gpudiag.training.jobs.parallel.gpt_stage import FeedForward, GptStage
from gpudiag.training.jobs.parallel.sizes import GptSizes
from gpudiag.training.jobs.parallel.step import ParallelGpt, cross_entropy
from tests.training.strategies.processes import tell

SIZES = GptSizes(vocabulary=40, context=16, width=16, layers=4, heads=4)
SEQUENCES, STEPS, RATE = 4, 3, 2.0


class TakingTurns(nn.Module):
    """All experts of a layer in one process; they take tokens in turn."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(FeedForward(SIZES.width) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        output = torch.empty_like(tokens)
        for number, expert in enumerate(self.experts):
            output[number :: len(self.experts)] = expert(tokens[number :: len(self.experts)])
        return output.view_as(x)


def batches(replica: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(replica)
    shape = (STEPS, SEQUENCES, SIZES.context + 1)
    return [(t[:, :-1], t[:, 1:]) for t in torch.randint(0, SIZES.vocabulary, shape, generator=generator)]


def undivided(layout: ParallelLayout, stages: int) -> list[GptStage]:
    """Train all stages in this process on the batches of all replicas, and return them."""
    parts = []
    for number in range(stages):
        torch.manual_seed(number)
        part = GptStage(SIZES, number, stages)
        if layout.ep > 1:
            # All experts begin with equal parameters.
            for block in part.blocks:
                turns, feed = TakingTurns(layout.ep), block.feed
                assert isinstance(feed, nn.Module)
                for expert in turns.experts:
                    expert.load_state_dict(feed.state_dict())
                block.feed = turns
        parts.append(part)
    model = nn.Sequential(*parts)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for each in zip(*(batches(replica) for replica in range(layout.dp * layout.ep)), strict=True):
        tokens, targets = (torch.cat(tensors) for tensors in zip(*each, strict=True))
        optimizer.zero_grad()
        cross_entropy(model(tokens), targets).backward()  # type: ignore[no-untyped-call]  # torch's own
        optimizer.step()
    return parts


def compare(layout: ParallelLayout, *, sharded: bool) -> dict[str, float]:
    """Train this rank's part and the undivided model; return largest difference and median change of parameters."""
    model = ParallelGpt(
        layout,
        SIZES,
        torch.device("cpu"),
        sharded=sharded,
        make_optimizer=lambda groups: torch.optim.SGD(groups, lr=RATE),
    )
    initial = [parameter.detach().clone() for part in model.parts for parameter in part.parameters()]
    for tokens, targets in batches(model.mesh.batch_index):
        model.train(tokens, targets)
    whole = undivided(layout, model.stages)
    own_expert = f"experts.{model.mesh.coordinate('ep')}."
    # This rank has one expert of each layer, and all other parameters of its stages.
    expected = [
        parameter
        for number in model.numbers
        for name, parameter in whole[number].named_parameters()
        if "experts." not in name or own_expert in name
    ]
    found = [parameter for part in model.parts for parameter in part.parameters()]
    differences = [(full(a) - b).abs().max().item() for a, b in zip(found, expected, strict=True)]
    changes = [(full(a) - full(b)).abs().max().item() for a, b in zip(found, initial, strict=True)]
    return {"difference": max(differences), "change": statistics.median(changes)}


def full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor.detach()


def main(rank: str, world: str, meeting: str, argument: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=int(world))
    answers: list[Any] = []
    for sizes, sharded in json.loads(argument):
        answers.append(compare(ParallelLayout(**sizes), sharded=sharded))
        gc.collect()
    tell(answers)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
