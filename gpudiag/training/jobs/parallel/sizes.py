"""Define sizes of the GPT that is divided over processes. Importing this module imports no framework."""

from __future__ import annotations

import msgspec

#: Number of pipeline stages of each process if the schedule is interleaved.
INTERLEAVED_STAGES = 2


class GptSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a GPT: distinct tokens, tokens per sequence, width, number of layers, number of attention heads."""

    vocabulary: int
    context: int
    width: int
    layers: int
    heads: int


#: Sizes of GPT-2 small.
GPU_SIZES = GptSizes(vocabulary=50_304, context=1024, width=768, layers=12, heads=12)
#: Sizes with 8.4 million parameters, so that four processes on two CPU cores take less than a second per step.
CPU_SIZES = GptSizes(vocabulary=4_096, context=128, width=256, layers=8, heads=8)


def gpt_sizes(*, on_gpu: bool) -> GptSizes:
    """Return the sizes for GPUs or for CPU processes."""
    return GPU_SIZES if on_gpu else CPU_SIZES
