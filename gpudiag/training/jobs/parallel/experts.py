"""A layer of experts, one per process of the group, with an all-to-all before and after."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from gpudiag.training.jobs.parallel.artificial import artificial_work


class _AllToAll(torch.autograd.Function):
    """Send rows to the ranks of a group; backward sends the gradients back, times a factor."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup, factor: float
    ) -> Tensor:
        ctx.counts = sent, received, group
        ctx.factor = factor
        return _exchange(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        sent, received, group = ctx.counts
        return _exchange(gradients[0] * ctx.factor, received, sent, group), None, None, None, None


def _all_to_all(
    rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup, factor: float
) -> Tensor:
    exchanged: Tensor = _AllToAll.apply(rows, sent, received, group, factor)  # type: ignore[no-untyped-call]  # torch's own
    return exchanged


def _exchange(rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    output = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(output, rows.contiguous(), received, sent, group=group)
    return output


class ExpertLayer(nn.Module):
    """Feed-forward layers, one per rank of the group, each for its own tokens.

    Tokens are assigned in turn (hash layers, S. Roller et al., 2021), so that all experts have the same work unless
    `hot_share` is set.

    Attributes:
        hot_share: share of the tokens that all go to the expert `hot`; the others are assigned in turn.
        hot: the expert that receives these tokens.
        ms_per_token: artificial duration of forward per received token.
    """

    def __init__(self, expert: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.expert = expert
        self.hot_share = 0.0
        self.hot = 0
        self.ms_per_token = 0.0
        self._group = group

    def forward(self, x: Tensor) -> Tensor:
        """Map float[n, t, width] to the same shape."""
        tokens = x.flatten(0, 1)
        choice = self._choose(len(tokens), x.device)
        order = torch.argsort(choice, stable=True)
        counts = torch.bincount(choice, minlength=self._group.size())
        their_counts = torch.empty_like(counts)
        dist.all_to_all_single(their_counts, counts, group=self._group)
        sent, received = counts.tolist(), their_counts.tolist()
        # An expert's gradient is a sum over the batches of all its ranks, which average those of all other layers.
        ranks = float(self._group.size())
        rows = self._work(_all_to_all(tokens[order], sent, received, self._group, ranks))
        rows = _all_to_all(rows, received, sent, self._group, 1.0 / ranks)
        return torch.empty_like(tokens).index_copy(0, order, rows).view_as(x)

    def _work(self, rows: Tensor) -> Tensor:
        if self.ms_per_token:
            rows = artificial_work(rows, self.ms_per_token * len(rows))
        output: Tensor = self.expert(rows)
        return output

    def _choose(self, count: int, device: torch.device) -> Tensor:
        """Return the expert of each token."""
        choice = torch.arange(count, device=device) % self._group.size()
        choice[: int(self.hot_share * count)] = self.hot
        return choice
