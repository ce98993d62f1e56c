"""Provide the models of `compute_models.py` that no library provides."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Mixer(nn.Module):
    """An MLP-Mixer: each block mixes the patches of an image, and then the channels of each patch."""

    def __init__(self, patches: int, width: int, blocks: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.blocks = nn.ModuleList(_MixerBlock(patches, width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the classes of each image."""
        hidden = self.patches(images).flatten(2).transpose(1, 2)
        for block in self.blocks:
            hidden = block(hidden)
        scores: Tensor = self.output(self.norm(hidden).mean(1))
        return scores


class _MixerBlock(nn.Module):
    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.tokens = nn.Sequential(nn.Linear(patches, width // 2), nn.GELU(), nn.Linear(width // 2, patches))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor) -> Tensor:
        mixed = self.tokens(self.norms[0](hidden).transpose(1, 2)).transpose(1, 2)
        hidden = hidden + mixed
        result: Tensor = hidden + self.channels(self.norms[1](hidden))
        return result


class ConvNeXt(nn.Module):
    """A ConvNeXt: depthwise convolutions of 7 x 7, and a layer norm of the channels of each pixel."""

    def __init__(self, width: int, depths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 4, stride=4)]
        for stage, depth in enumerate(depths):
            if stage:
                layers += [_ChannelNorm(width), nn.Conv2d(width, 2 * width, 2, stride=2)]
                width *= 2
            layers += [_ConvNeXtBlock(width) for _ in range(depth)]
        self.layers = nn.Sequential(*layers)
        self.output = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the classes of each image."""
        scores: Tensor = self.output(self.layers(images).mean((2, 3)))
        return scores


class _ChannelNorm(nn.LayerNorm):
    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _ConvNeXtBlock(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(
            nn.Conv2d(width, width, 7, padding=3, groups=width),
            _ChannelNorm(width),
            nn.Conv2d(width, 4 * width, 1),
            nn.GELU(),
            nn.Conv2d(4 * width, width, 1),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = hidden + super().forward(hidden)  # type: ignore[no-untyped-call]  # torch's own
        return result


class WaveNet(nn.Module):
    """A WaveNet: gated dilated convolutions over a sound, with residual and skip connections.

    A sample of the sound is one of `levels` integers.
    """

    def __init__(self, levels: int, width: int, layers: int) -> None:
        super().__init__()
        self.input = nn.Embedding(levels, width)
        self.dilations = [2 ** (layer % 10) for layer in range(layers)]
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=dilation) for dilation in self.dilations)
        self.outputs = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in self.dilations)
        self.last = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, levels, 1))

    def forward(self, samples: Tensor) -> Tensor:
        """Return the scores of the levels of the next sample at each time, as (batch, levels, times)."""
        hidden = self.input(samples).transpose(1, 2)
        skipped = torch.zeros_like(hidden)
        for dilation, gate, output in zip(self.dilations, self.gates, self.outputs, strict=True):
            value, opening = gate(functional.pad(hidden, (dilation, 0))).chunk(2, 1)
            residual, skip = output(torch.tanh(value) * torch.sigmoid(opening)).chunk(2, 1)
            hidden, skipped = hidden + residual, skipped + skip
        scores: Tensor = self.last(skipped)
        return scores


class Translator(nn.Module):
    """An encoder and a decoder of words, with causal attention and attention to the encoder's result."""

    def __init__(self, words: int, width: int, heads: int, layers: int, *, sdpa: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.encoder = nn.ModuleList(_TranslatorLayer(width, heads, 1, sdpa=sdpa) for _ in range(layers))
        self.decoder = nn.ModuleList(_TranslatorLayer(width, heads, 2, sdpa=sdpa) for _ in range(layers))
        self.output = nn.Linear(width, words)

    def forward(self, words: Tensor) -> Tensor:
        """Return the scores of the words at each position of the sentence, as (batch, words, positions)."""
        source = target = self.embedding(words)
        for layer in self.encoder:
            source = layer(source, None)
        for layer in self.decoder:
            target = layer(target, source)
        scores: Tensor = self.output(target)
        return scores.transpose(1, 2)


class _TranslatorLayer(nn.Module):
    def __init__(self, width: int, heads: int, attentions: int, *, sdpa: bool) -> None:
        super().__init__()
        self.attentions = nn.ModuleList(_Attention(width, heads, sdpa=sdpa) for _ in range(attentions))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(attentions + 1))
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor, source: Tensor | None) -> Tensor:
        """Return the layer's result; `source` is the encoder's result in a decoder layer, None in an encoder layer."""
        normed = self.norms[0](hidden)
        hidden = hidden + self.attentions[0](normed, normed, causal=source is not None)
        if source is not None:
            hidden = hidden + self.attentions[1](self.norms[1](hidden), source, causal=False)
        result: Tensor = hidden + self.feed_forward(self.norms[-1](hidden))
        return result


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, *, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, hidden: Tensor, source: Tensor, *, causal: bool) -> Tensor:
        # Each position of `hidden` attends to `source`; if `causal`, only to positions up to its own.
        query, key, value = (
            project(given).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project, given in ((self.query, hidden), (self.key, source), (self.value, source))
        )
        if self.sdpa:
            attended = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
        else:
            scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
            if causal:
                ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
                scores = scores.masked_fill(ones.triu(1), float("-inf"))
            attended = scores.softmax(-1) @ value
        result: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return result
