"""One tensor to be reduced, cut into chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
        chunks: (number, begin, end): elements begin to end travel as chunk `number`.
    """

    tensor: torch.Tensor
    wire: torch.Tensor | None
    chunks: list[tuple[int, int, int]]


def cut(count: int, most: int, least: int, few: int) -> list[tuple[int, int]]:
    """Cut `count` elements into (begin, end), none longer than `most`, all but the last of about one length.

    There are at least `few` if they are then no shorter than `least`, so that copies both ways and sums of one tensor
    overlap: of 1 MB in one chunk the result would only begin to return when all of it had gone.
    """
    pieces = max(-(-count // most), min(few, count // least), 1)
    length = min(most, -(-count // (pieces * ALIGNMENT)) * ALIGNMENT)
    return [(begin, min(begin + length, count)) for begin in range(0, count, length)]
