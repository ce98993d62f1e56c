"""One rank's view of the memory that all ranks share: counters, pieces and slots."""

from __future__ import annotations

import numpy as np
import torch

from gpudiag.training.strategies.shared_host import layout as at
from gpudiag.training.strategies.shared_host.layout import Layout, reached
from gpudiag.training.strategies.shared_host.segment import Segment


class Control:
    """Reads and writes the counters of `layout`.

    Counters are aligned 32-bit words, so that each is read and written whole.

    Args:
        segment: the shared memory.
        layout: where everything lies in it.
        rank: this process's.
    """

    def __init__(self, segment: Segment, layout: Layout, rank: int) -> None:
        self.layout = layout
        self.rank = rank
        self.address = segment.address
        self._words = np.frombuffer(segment.memory, np.uint32, layout.staging // 4)
        self._bytes = torch.frombuffer(segment.memory, dtype=torch.uint8)

    def get(self, counter: int, rank: int | None = None) -> int:
        """A counter, of this rank unless another is named."""
        page = self.layout.control(self.rank if rank is None else rank)
        return int(self._words[(page + counter) // 4])

    def set(self, counter: int, value: int) -> None:
        """Set a counter of this rank."""
        self._words[(self.layout.control(self.rank) + counter) // 4] = value % at.WRAP

    def lane(self, counter: int, number: int) -> int:
        """The offset of the lane's own counter, for chunk `number`."""
        return counter + number % self.layout.lanes * at.LINE

    def put_piece(self, number: int, count: int, kind: int, divisor: int) -> None:
        """Say what this rank's chunk `number` is: `count` elements of a kind, to be summed and divided."""
        word = (self.layout.ring(self.rank) + number % at.RING * at.PIECE) // 4
        self._words[word : word + 3] = (count, kind, divisor)

    def piece(self, rank: int, number: int) -> tuple[int, int, int]:
        """What a rank's chunk is: (element count, kind, divisor)."""
        word = (self.layout.ring(rank) + number % at.RING * at.PIECE) // 4
        count, kind, divisor = self._words[word : word + 3]
        return int(count), int(kind), int(divisor)

    def slot(self, rank: int, number: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        """The slot of a rank's chunk as a tensor; of the result for `rank == world`."""
        begin = self.layout.slot(rank, number)
        return self._bytes[begin : begin + self.layout.chunk_bytes].view(dtype)

    def may_reduce(self, number: int) -> bool:
        """Is the chunk there from every rank, and has every rank taken what was in its result slot before?"""
        arrived, fetched = self.lane(at.ARRIVED, number), self.lane(at.FETCHED, number)
        before = number + 1 - self.layout.slots
        return all(
            reached(self.get(arrived, rank), number + 1) and reached(self.get(fetched, rank), before)
            for rank in range(self.layout.world)
        )

    def unlike(self, number: int) -> int | None:
        """A rank whose chunk differs from this rank's in size or type."""
        mine = self.piece(self.rank, number)
        return next((rank for rank in range(self.layout.world) if self.piece(rank, number) != mine), None)

    def least_reduced(self, mine: int) -> int:
        """How many chunks every rank has reduced; this rank itself has `mine`."""
        least = mine
        for rank in range(self.layout.world):
            theirs = self.get(at.REDUCED, rank)
            if not reached(theirs, least):
                least = theirs
        return least

    def is_ready(self, number: int) -> bool:
        """Has every rank formed its share of the first `number` chunks?"""
        return reached(self.get(at.READY), number)

    def spoil_results(self) -> None:
        """Make every result slot NaN (all bits set is one in each float type): what is read from now on is no sum."""
        for number in range(self.layout.slots):
            self.slot(self.layout.world, number).fill_(0xFF)
