"""Where everything lies in the memory that the ranks of an exchange share."""

from __future__ import annotations

from dataclasses import dataclass

PAGE = 4096

#: A counter has this many bytes to itself, so that no two of its writers or readers share a cache line (x86 fetches
#: lines in pairs).
LINE = 128

#: Pieces that a rank may have submitted and its peers not yet reduced.
RING = 4096

#: Bytes of one piece in the ring: element count, kind, divisor, unused.
PIECE = 16

#: At most so many copies per direction and GPU are under way at once.
MOST_LANES = 8

# Offsets within a rank's control page; the same in reduce.c.
ARRIVED = 0
"""By lane: one more than the number of the last chunk that has come from this rank's device. Written by the device."""
FETCHED = 1024
"""By lane: the same for the last result that this rank's device has taken. Written by the device."""
REDUCED = 2048
"""How many chunks this rank's threads have formed their share of."""
READY = 2176
"""How many chunks every rank has formed its share of, as this rank sees it. This rank's device waits for it."""
STATE = 2304
"""What this rank is doing: one of the states below."""
SUBMITTED = 2432
"""How many chunks this rank has given to its device."""

ACTIVE, LEFT, FAILED = 1, 2, 3

#: Counters wrap after this.
WRAP = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The shared memory of one exchange: a control page per rank, a ring of pieces per rank, and the slots.

    Chunk k of every rank passes through slot k mod `slots`: each rank has that many slots for what it sends, and there
    are as many for the results, which all ranks read. So the memory does not grow with the model, and, being used again
    and again, much of it stays in the processor's cache.

    Attributes:
        world: ranks.
        chunk_bytes: bytes of a slot; a multiple of the page size.
        slots: slots per rank; a power of two.
        lanes: copies under way at once, per direction and device; divides `slots`.
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
        """Offset of a rank's control page."""
        return rank * PAGE

    @property
    def pieces(self) -> int:
        """Offset of the rings of pieces."""
        return self.world * PAGE

    def ring(self, rank: int) -> int:
        """Offset of a rank's ring of pieces."""
        return self.pieces + rank * RING * PIECE

    @property
    def staging(self) -> int:
        """Offset of the first slot."""
        return self.ring(self.world)

    def slot(self, rank: int, number: int) -> int:
        """Offset of the slot through which chunk `number` of `rank` passes; of its result for `rank == world`."""
        return self.staging + (rank * self.slots + number % self.slots) * self.chunk_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole."""
        return self.slot(self.world + 1, 0)


def reached(value: int, wanted: int) -> bool:
    """Is the counter `value` at or past `wanted`? Both may have wrapped."""
    return (value - wanted) % WRAP < WRAP // 2
