"""Define `gpt`: GPT-2 small (A. Radford et al., 2019), 12 layers, 768 wide, 12 heads, the embedding as output layer.

GPT-2 has 124,439,808 parameters. This model has 124,475,904, because it rounds the embedding's 50,257 rows up to
50,304: matrix products with sizes divisible by 64 are faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from gpudiag.training.models.pytorch.workload import Workload

VOCABULARY = 50_304
CONTEXT = 1024
#: Number of tokens per sequence on a CPU. The model is the same as on GPUs.
CPU_CONTEXT = 128
WIDTH = 768
LAYERS = 12
HEADS = 12


class TransformerBlock(nn.Module):
    """Causal self-attention and a feed-forward layer. A layer norm precedes each of the two."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Map float[n, t, WIDTH] to the same shape."""
        n, t, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(n, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(n, t, WIDTH))
        out: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return out


class Gpt(nn.Module):
    """Token and position embedding, twelve blocks, and the token embedding as output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(TransformerBlock() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                # GPT-2 initialises layers with smaller weights if their output is added to the residual stream.
                residual = name.endswith(("projection.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * LAYERS) if residual else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map int64[n, t] to logits, float[n, t, VOCABULARY]."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.blocks(self.tokens(tokens) + self.positions(positions)))
        return functional.linear(x, self.tokens.weight)


class Gpt2Small(Workload):
    """GPT-2 small: large matrix products and 498 MB of gradients in fp32."""

    def model(self) -> nn.Module:
        """Build the network."""
        return Gpt()

    def samples(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Make int64[count, t] tokens and the tokens that follow them."""
        context = CONTEXT if self.on_gpu else CPU_CONTEXT
        tokens = torch.randint(0, VOCABULARY, (count, context + 1), generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy over all positions."""
        return functional.cross_entropy(output.flatten(0, 1), target.flatten())

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Return AdamW, fused on GPUs."""
        return torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=self.on_gpu)
