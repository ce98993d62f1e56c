"""Define a pipeline stage of a GPT whose layers are divided over processes.

The layers are those of the workload `gpt` with two differences. Query, key and value have separate matrices, so that
each matrix can be split by heads. Embedding and output layer share no weights, because they are on different stages.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional

from gpudiag.training.jobs.parallel.artificial import artificial_work
from gpudiag.training.jobs.parallel.experts import ExpertLayer
from gpudiag.training.jobs.parallel.sizes import GptSizes


class GatheredSequence(torch.autograd.Function):
    """Concatenate the ranks' parts of sequences. In backward, sum the gradients of each part on the part's rank."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return float[n, heads, t of the whole sequence, width of a head] from this rank's part of the sequence."""
        ctx.group = group
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(group.size())]
        dist.all_gather(parts, part, group=group)
        return torch.cat(parts, dim=2)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the gradient of this rank's part."""
        summed = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(summed, group=ctx.group)
        return summed.chunk(ctx.group.size(), dim=2)[ctx.group.rank()], None


class SplitAttention(nn.Module):
    """Causal self-attention of this process's heads and part of the sequence.

    Args:
        sizes: sizes of the whole model.
        sequence_group: processes with parts of the same sequences, which gather keys and values; None if this process
            has whole sequences.
    """

    def __init__(self, sizes: GptSizes, sequence_group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self._head_width = sizes.width // sizes.heads
        self._group = sequence_group
        self.query = nn.Linear(sizes.width, sizes.width)
        self.key = nn.Linear(sizes.width, sizes.width)
        self.value = nn.Linear(sizes.width, sizes.width)
        self.projection = nn.Linear(sizes.width, sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        """Map float[n, t, width] (n sequences of t tokens) to the same shape.

        Under tensor parallelism the linear layers return only the columns of this process's heads.
        """
        query, key, value = (self._heads(layer(x)) for layer in (self.query, self.key, self.value))
        if self._group is None:
            attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            t, part = x.shape[1], self._group.rank()
            key, value = (GatheredSequence.apply(heads, self._group) for heads in (key, value))  # type: ignore[no-untyped-call]
            positions = torch.arange(key.shape[2], device=x.device)
            # This part's positions begin at `part * t`. Each position attends to itself and to all earlier positions.
            mask = positions[part * t : (part + 1) * t, None] >= positions
            attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        out: Tensor = self.projection(attended.transpose(1, 2).flatten(2))
        return out

    def _heads(self, projected: Tensor) -> Tensor:
        """Map float[n, t, width] to float[n, heads, t, width of a head]."""
        n, t, width = projected.shape
        return projected.view(n, t, width // self._head_width, self._head_width).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear layers with four times the width between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map float[..., width] to the same shape."""
        out: Tensor = self.down(functional.gelu(self.up(x), approximate="tanh"))
        return out


class SplitBlock(nn.Module):
    """Attention, and a feed-forward layer or a layer of experts. A layer norm precedes each of the two.

    Attributes:
        ms_per_token: artificial duration of forward per token in ms, in addition to the real work.
    """

    def __init__(
        self, sizes: GptSizes, sequence_group: dist.ProcessGroup | None, expert_group: dist.ProcessGroup | None
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(sizes.width)
        self.attention = SplitAttention(sizes, sequence_group)
        self.norm2 = nn.LayerNorm(sizes.width)
        feed = FeedForward(sizes.width)
        self.feed = feed if expert_group is None else ExpertLayer(feed, expert_group)
        self.ms_per_token = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Map float[n, t, width] to the same shape."""
        if self.ms_per_token:
            x = artificial_work(x, self.ms_per_token * x.shape[0] * x.shape[1])
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.feed(self.norm2(x))
        return out


class GptStage(nn.Module):
    """Consecutive layers of a GPT; the first stage embeds tokens and the last returns logits.

    Args:
        sizes: sizes of the whole model.
        stage, stages: index of this stage, and number of stages.
        sequence_group: see `SplitAttention`.
        expert_group: processes that have the experts of each layer; None for layers without experts.
        bf16: compute in bf16 under autocast. Stages send fp32 values to each other in any case.
    """

    def __init__(
        self,
        sizes: GptSizes,
        stage: int,
        stages: int,
        *,
        sequence_group: dist.ProcessGroup | None = None,
        expert_group: dist.ProcessGroup | None = None,
        bf16: bool = False,
    ) -> None:
        super().__init__()
        self._bf16 = bf16
        # Stages differ by at most one layer.
        layers = sizes.layers * (stage + 1) // stages - sizes.layers * stage // stages
        self._part = 0 if sequence_group is None else sequence_group.rank()
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width) if stage == 0 else None
        self.positions = nn.Embedding(sizes.context, sizes.width) if stage == 0 else None
        self.blocks = nn.ModuleList(SplitBlock(sizes, sequence_group, expert_group) for _ in range(layers))
        last = stage == stages - 1
        self.norm = nn.LayerNorm(sizes.width) if last else None
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False) if last else None
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:  # initialize matrices as GPT-2 does
                residual = name.endswith(("projection.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * sizes.layers) if residual else 0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens int64[n, t] (first stage) or float[n, t, width] to float[n, t, width] or logits (last stage)."""
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=self._bf16):
            if self.tokens is not None and self.positions is not None:
                begin, t = self._part * x.shape[1], x.shape[1]  # this process's tokens begin at position `begin`
                x = self.tokens(x) + self.positions(torch.arange(begin, begin + t, device=x.device))
            for block in self.blocks:
                x = block(x)
            if self.norm is not None and self.head is not None:
                x = self.head(self.norm(x))
            return x.float()
