"""One tensor to be reduced, cut into chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpudiag.training.strategies.shared_host.layout import WRAP

if TYPE_CHECKING:
    import torch

#: A chunk's borders are multiples of this many elements, so that no two threads write one cache line.
ALIGNMENT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a mover is to do.

    Attributes:
        tensor: one-dimensional and contiguous; the result replaces what is in it.
        wire: a buffer of the same length in the precision in which it travels; None for its own.
        first: number of its first chunk.
        length: elements of a chunk; the last may be shorter.
    """

    tensor: torch.Tensor
    wire: torch.Tensor | None
    first: int
    length: int

    @property
    def packed(self) -> torch.Tensor:
        """What travels."""
        return self.tensor if self.wire is None else self.wire

    @property
    def chunks(self) -> list[tuple[int, int, int]]:
        """(number, begin, end): elements begin to end travel as chunk `number`."""
        count = self.tensor.numel()
        return [
            ((self.first + index) % WRAP, begin, min(begin + self.length, count))
            for index, begin in enumerate(range(0, count, self.length))
        ]


def chunk_length(count: int, most: int, least: int, few: int) -> int:
    """Elements of each chunk but the last, of `count`: at most `most`, and a multiple of `ALIGNMENT`.

    There are at least `few` if they are then no shorter than `least`, so that copies both ways and sums of one tensor
    overlap: of 1 MB in one chunk the result would only begin to return when all of it had gone.
    """
    chunks = max(-(-count // most), min(few, count // least), 1)
    return min(most, -(-count // (chunks * ALIGNMENT)) * ALIGNMENT)
