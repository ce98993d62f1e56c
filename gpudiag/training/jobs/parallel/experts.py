"""Define a layer of experts, one per process of a group. Tokens are sent to the experts and back by all-to-all."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist

from gpudiag.training.jobs.parallel.artificial import artificial_work


class RowCounts(NamedTuple):
    """Numbers of rows that this rank sends to and receives from each rank of a group."""

    group: dist.ProcessGroup
    sent: list[int]
    received: list[int]

    @property
    def reversed(self) -> RowCounts:
        """Counts for sending the received rows back."""
        return RowCounts(self.group, self.received, self.sent)

    def exchange(self, rows: Tensor) -> Tensor:
        """Send `rows` to the ranks; return the received rows, in the order of ranks."""
        output = rows.new_empty(sum(self.received), *rows.shape[1:])
        dist.all_to_all_single(output, rows.contiguous(), self.received, self.sent, group=self.group)
        return output


class AllToAll(torch.autograd.Function):
    """Send rows to the ranks of a group. In backward, multiply the gradients by a factor and send them back."""

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
    exchanged: Tensor = AllToAll.apply(rows, counts, factor)  # type: ignore[no-untyped-call]  # untyped in torch
    return exchanged


class ExpertLayer(nn.Module):
    """Feed-forward layers (experts), one per rank of the group. Each expert processes the tokens assigned to it.

    Tokens are assigned in turn (hash layers, S. Roller et al., 2021). All experts have equal work if `hot_share` is 0.

    Attributes:
        hot_share: share of the tokens that go to the expert `hot`. The other tokens are assigned in turn.
        hot: number of the expert that receives `hot_share`.
        ms_per_token: artificial duration of forward per received token, in ms.
    """

    def __init__(self, expert: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.expert = expert
        self.hot_share = 0.0
        self.hot = 0
        self.ms_per_token = 0.0
        self._group = group

    def forward(self, x: Tensor) -> Tensor:
        """Map float[n, t, width] (n sequences of t tokens) to the same shape."""
        tokens = x.flatten(0, 1)
        choice = self._choose(len(tokens), x.device)
        order = torch.argsort(choice, stable=True)  # all-to-all sends the rows of each rank together
        sent = torch.bincount(choice, minlength=self._group.size())
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._group)
        counts = RowCounts(self._group, sent.tolist(), received.tolist())
        # An expert's gradients are sums over the ranks of the group. In backward the second all-to-all scales them to
        # means, like all other gradients. The first all-to-all undoes this for the gradients of the tokens.
        ranks = float(self._group.size())
        rows = self._work(_all_to_all(tokens[order], counts, ranks))
        rows = _all_to_all(rows, counts.reversed, 1.0 / ranks)
        return torch.empty_like(rows).index_copy(0, order, rows).view_as(x)  # in the tokens' order again

    def _work(self, rows: Tensor) -> Tensor:
        if self.ms_per_token:
            rows = artificial_work(rows, self.ms_per_token * len(rows))
        output: Tensor = self.expert(rows)
        return output

    def _choose(self, count: int, device: torch.device) -> Tensor:
        """Return the expert's number for each of `count` tokens."""
        choice = torch.arange(count, device=device) % self._group.size()
        choice[: int(self.hot_share * count)] = self.hot
        return choice
