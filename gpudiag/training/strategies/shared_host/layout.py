"""Define the layout of the memory that the ranks of an all-reduce share, and cut tensors into chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PAGE = 4096

#: Bytes per counter. x86 fetches cache lines of 64 bytes in pairs, so two counters must not share a pair of lines.
LINE = 128

#: Number of entries of a rank's ring buffer. A rank may submit this many chunks before all ranks have reduced them.
RING = 4096

#: Bytes of an entry in the ring buffer, which describes a chunk: element count, type, divisor, unused word.
PIECE = 16

#: Maximum number of concurrent copies per direction and GPU.
MOST_LANES = 8

# Offsets of counters within a rank's control page. reduce.c must contain the same offsets.
ARRIVED = 0
"""For each lane, the number of the last chunk that this rank's device has sent, plus one. The device writes it."""
FETCHED = 1024
"""For each lane, the number of the last result that this rank's device has fetched, plus one. The device writes it."""
REDUCED = 2048
"""Number of chunks of which this rank's threads have summed the rank's share."""
READY = 2176
"""Number of chunks that every rank has summed, as far as this rank knows. This rank's device waits for this counter."""
STATE = 2304
"""State of this rank: ACTIVE, LEFT or FAILED."""
SUBMITTED = 2432
"""Number of chunks that this rank has enqueued on its device."""

ACTIVE, LEFT, FAILED = 1, 2, 3

#: Counters wrap at this value.
WRAP = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layout of one all-reduce's shared memory: a control page and a ring buffer per rank, and then the slots.

    A slot is memory for one chunk. Chunk k of every rank uses slot k mod `slots`. Each rank has `slots` slots for its
    chunks, and all ranks share `slots` slots for results. So the memory does not grow with the model.

    Attributes:
        world: number of ranks.
        chunk_bytes: bytes of a slot; a multiple of the page size.
        slots: number of slots per rank; a power of two.
        lanes: number of concurrent copies per direction and device; a power of two, at most `slots`.
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
        """Offset of the ring buffers in the shared memory, in bytes."""
        return self.world * PAGE

    def ring(self, rank: int) -> int:
        """Return the offset of a rank's ring buffer."""
        return self.pieces + rank * RING * PIECE

    @property
    def staging(self) -> int:
        """Offset of the first slot."""
        return self.ring(self.world)

    def slot(self, rank: int, number: int) -> int:
        """Return the offset of the slot of a rank's chunk, or of the result slot if `rank` equals `world`."""
        return self.staging + (rank * self.slots + number % self.slots) * self.chunk_bytes

    @property
    def total_bytes(self) -> int:
        """Size of the shared memory in bytes."""
        return self.slot(self.world + 1, 0)


def reached(value: int, wanted: int) -> bool:
    """Return whether a counter with this value has reached `wanted`. Both numbers may have wrapped."""
    return (value - wanted) % WRAP < WRAP // 2


#: Chunks begin at multiples of this number of elements, so that no two threads write to the same cache line.
ALIGNMENT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedTensor:
    """A tensor to reduce in place, cut into chunks.

    Attributes:
        tensor: a contiguous tensor with one dimension.
        wire: a buffer of the same length in the precision of transport; None to transport the tensor itself.
        first: number of the first chunk.
        length: number of elements of a chunk. The last chunk may be shorter.
    """

    tensor: torch.Tensor
    wire: torch.Tensor | None
    first: int
    length: int

    @property
    def packed(self) -> torch.Tensor:
        """The tensor that is transported: `wire`, or `tensor` if `wire` is None."""
        return self.tensor if self.wire is None else self.wire

    @property
    def chunks(self) -> list[tuple[int, int, int]]:
        """(number, index of the first element, index after the last element) of each chunk."""
        count = self.tensor.numel()
        return [
            ((self.first + index) % WRAP, begin, min(begin + self.length, count))
            for index, begin in enumerate(range(0, count, self.length))
        ]


def chunk_length(count: int, most: int, least: int, few: int) -> int:
    """Return the number of elements per chunk of a tensor with `count` elements. `most` and `least` are elements too.

    The length is a multiple of `ALIGNMENT`, but at most `most`. There are at least `few` chunks, so that copies in both
    directions and sums overlap. There are fewer chunks if they would otherwise be shorter than `least`.
    """
    chunks = max(-(-count // most), min(few, count // least), 1)
    return min(most, -(-count // (chunks * ALIGNMENT)) * ALIGNMENT)
