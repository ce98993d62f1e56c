"""Layout of the memory that the ranks of an all-reduce share, and the chunks in which tensors pass through it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PAGE = 4096

#: Bytes per counter, so that no two counters share a cache line (x86 fetches lines in pairs).
LINE = 128

#: Pieces that a rank may have submitted before its peers have reduced them.
RING = 4096

#: Bytes of one entry in the ring buffer: element count, kind, divisor, unused.
PIECE = 16

#: Largest number of concurrent copies per direction and GPU.
MOST_LANES = 8

# Offsets within a rank's control page, which must equal those in reduce.c.
ARRIVED = 0
"""Number of the last chunk that this rank's device has sent, plus one, by lane. Written by the device."""
FETCHED = 1024
"""Number of the last result that this rank's device has fetched, plus one, by lane. Written by the device."""
REDUCED = 2048
"""Number of chunks of which this rank's threads have summed their share."""
READY = 2176
"""Number of chunks that every rank has summed, as this rank sees it. This rank's device waits for it."""
STATE = 2304
"""State of this rank: one of those below."""
SUBMITTED = 2432
"""Number of chunks that this rank has enqueued on its device."""

ACTIVE, LEFT, FAILED = 1, 2, 3

#: Counters wrap at this value.
WRAP = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The shared memory of one all-reduce: a control page and a ring of pieces per rank, and the slots.

    Chunk k of every rank passes through slot k mod `slots`. Each rank has as many slots for what it sends, and all
    ranks share as many for results. So the memory does not grow with the model, and much of it stays in the processor's
    cache.

    Attributes:
        world: ranks.
        chunk_bytes: bytes of a slot; a multiple of the page size.
        slots: slots per rank; a power of two.
        lanes: concurrent copies per direction and device; divides `slots`.
    """

    world: int
    chunk_bytes: int
    slots: int
    lanes: int

    def __post_init__(self) -> None:
        powers = all(number > 0 and number & (number - 1) == 0 for number in (self.slots, self.lanes))
        if not powers or self.lanes > min(self.slots, MOST_LANES):
            raise ValueError(
                f"slots ({self.slots}) and lanes ({self.lanes}) must be powers of two, lanes at most slots and 8"
            )
        if self.chunk_bytes < PAGE or self.chunk_bytes % PAGE:
            raise ValueError(f"chunk_bytes ({self.chunk_bytes}) must be a multiple of {PAGE}")

    def control(self, rank: int) -> int:
        """Return the offset of a rank's control page."""
        return rank * PAGE

    @property
    def pieces(self) -> int:
        """Return the offset of the ring buffers."""
        return self.world * PAGE

    def ring(self, rank: int) -> int:
        """Return the offset of a rank's ring of pieces."""
        return self.pieces + rank * RING * PIECE

    @property
    def staging(self) -> int:
        """Return the offset of the first slot."""
        return self.ring(self.world)

    def slot(self, rank: int, number: int) -> int:
        """Return the offset of the slot of a rank's chunk; of its result for `rank == world`."""
        return self.staging + (rank * self.slots + number % self.slots) * self.chunk_bytes

    @property
    def total_bytes(self) -> int:
        """Return the size of the shared memory."""
        return self.slot(self.world + 1, 0)


def reached(value: int, wanted: int) -> bool:
    """Return whether counter `value` is at or past `wanted`; both may have wrapped."""
    return (value - wanted) % WRAP < WRAP // 2


#: Chunks begin at multiples of this many elements, so that no two threads write one cache line.
ALIGNMENT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedTensor:
    """A tensor to reduce in place, cut into chunks.

    Attributes:
        tensor: one-dimensional and contiguous.
        wire: a buffer of the same length in the precision of transport; None to transport the tensor itself.
        first: number of the first chunk.
        length: elements of a chunk; the last one may be shorter.
    """

    tensor: torch.Tensor
    wire: torch.Tensor | None
    first: int
    length: int

    @property
    def packed(self) -> torch.Tensor:
        """Return the tensor in its transported format."""
        return self.tensor if self.wire is None else self.wire

    @property
    def chunks(self) -> list[tuple[int, int, int]]:
        """Return (number, begin, end) of each chunk."""
        count = self.tensor.numel()
        return [
            ((self.first + index) % WRAP, begin, min(begin + self.length, count))
            for index, begin in enumerate(range(0, count, self.length))
        ]


def chunk_length(count: int, most: int, least: int, few: int) -> int:
    """Return the elements per chunk of a tensor of `count`: at most `most`, and a multiple of `ALIGNMENT`.

    A tensor is cut into at least `few` chunks, unless they would be shorter than `least`, so that its copies both ways
    and its sums overlap.
    """
    chunks = max(-(-count // most), min(few, count // least), 1)
    return min(most, -(-count // (chunks * ALIGNMENT)) * ALIGNMENT)
