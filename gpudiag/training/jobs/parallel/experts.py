"""A layer of experts, one per process of the group, with an all-to-all before and after."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist

from gpudiag.training.jobs.parallel.artificial import artificial_work


class RowCounts(NamedTuple):
    """Numbers of rows sent to and received from each rank of a group."""

    group: dist.ProcessGroup
    sent: list[int]
    received: list[int]

    @property
    def reversed(self) -> RowCounts:
        """The counts for sending the rows back."""
        return RowCounts(self.group, self.received, self.sent)

    def exchange(self, rows: Tensor) -> Tensor:
        """Return the received rows, by rank."""
        output = rows.new_empty(sum(self.received), *rows.shape[1:])
        dist.all_to_all_single(output, rows.contiguous(), self.received, self.sent, group=self.group)
        return output


class AllToAll(torch.autograd.Function):
    """Send rows to the ranks of a group; backward sends the gradients back, times a factor."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: RowCounts, factor: float) -> Tensor:
        """Return the received rows."""
        ctx.counts, ctx.factor = counts, factor
        return counts.exchange(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the gradients of the sent rows."""
        return ctx.counts.reversed.exchange(gradients[0] * ctx.factor), None, None


def _all_to_all(rows: Tensor, counts: RowCounts, factor: float) -> Tensor:
    exchanged: Tensor = AllToAll.apply(rows, counts, factor)  # type: ignore[no-untyped-call]  # torch's own
    return exchanged


class ExpertLayer(nn.Module):
    """Feed-forward layers, one per rank of the group, each for the tokens assigned to it.

    Tokens are assigned in turn (hash layers, S. Roller et al., 2021). All experts have equal work if `hot_share` is 0.

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
        sent = torch.bincount(choice, minlength=self._group.size())
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._group)
        counts = RowCounts(self._group, sent.tolist(), received.tolist())
        # An expert's gradient sums over the batches of all ranks in the group. Other gradients are averaged over ranks.
        ranks = float(self._group.size())
        rows = self._work(_all_to_all(tokens[order], counts, ranks))
        rows = _all_to_all(rows, counts.reversed, 1.0 / ranks)
        return torch.empty_like(rows).index_copy(0, order, rows).view_as(x)

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
