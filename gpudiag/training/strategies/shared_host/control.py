"""Let one rank access the shared memory of an all-reduce: counters, descriptions of chunks, and slots."""

from __future__ import annotations

import numpy as np
import torch

from gpudiag.training.strategies.shared_host import layout as at
from gpudiag.training.strategies.shared_host.layout import Layout, reached
from gpudiag.training.strategies.shared_host.segment import Segment


class Control:
    """Read and write the counters (aligned 32-bit words, so accesses are atomic), chunk descriptions and slots."""

    def __init__(self, segment: Segment, layout: Layout, rank: int) -> None:
        self.layout, self.rank = layout, rank
        self.address = segment.address
        self._words = np.frombuffer(segment.memory, np.uint32, layout.staging // 4)
        self._bytes = torch.frombuffer(segment.memory, dtype=torch.uint8)

    def get(self, counter: int, rank: int | None = None) -> int:
        """Return the value of a rank's counter, by default of this rank's counter."""
        page = self.layout.control(self.rank if rank is None else rank)
        return int(self._words[(page + counter) // 4])

    def set(self, counter: int, value: int) -> None:
        """Set a counter of this rank."""
        self._words[(self.layout.control(self.rank) + counter) // 4] = value % at.WRAP

    def lane(self, counter: int, number: int) -> int:
        """Return the offset of a counter in the control page, for the lane that chunk `number` uses."""
        return counter + number % self.layout.lanes * at.LINE

    def put_piece(self, number: int, count: int, kind: int, divisor: int) -> None:
        """Write the description of this rank's chunk `number`: element count, type (see `KINDS`), divisor of sums."""
        word = (self.layout.ring(self.rank) + number % at.RING * at.PIECE) // 4
        self._words[word : word + 3] = (count, kind, divisor)

    def piece(self, rank: int, number: int) -> tuple[int, int, int]:
        """Return the description of a rank's chunk: (element count, type (see `KINDS`), divisor of sums)."""
        word = (self.layout.ring(rank) + number % at.RING * at.PIECE) // 4
        count, kind, divisor = self._words[word : word + 3]
        return int(count), int(kind), int(divisor)

    def slot(self, rank: int, number: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        """Return the slot of a rank's chunk as a tensor. If `rank` is the number of ranks, return the result slot."""
        begin = self.layout.slot(rank, number)
        return self._bytes[begin : begin + self.layout.chunk_bytes].view(dtype)

    def may_reduce(self, number: int) -> bool:
        """Return whether every rank has sent this chunk, and has fetched the result that the result slot contains."""
        arrived, fetched = self.lane(at.ARRIVED, number), self.lane(at.FETCHED, number)
        before = number + 1 - self.layout.slots  # the result slot still has the result of chunk `number - slots`
        return all(
            reached(self.get(arrived, rank), number + 1) and reached(self.get(fetched, rank), before)
            for rank in range(self.layout.world)
        )

    def unlike(self, number: int) -> int | None:
        """Return a rank whose chunk differs from this rank's chunk in size, type or divisor; None if none differs."""
        piece = self.piece(self.rank, number)
        return next((rank for rank in range(self.layout.world) if self.piece(rank, number) != piece), None)

    def least_reduced(self, reduced: int) -> int:
        """Return the number of chunks that every rank has reduced. This rank has reduced `reduced` chunks."""
        least = reduced
        for rank in range(self.layout.world):
            count = self.get(at.REDUCED, rank)
            if not reached(count, least):
                least = count
        return least

    def is_ready(self, number: int) -> bool:
        """Return whether every rank has summed its share of the first `number` chunks."""
        return reached(self.get(at.READY), number)

    def spoil_results(self) -> None:
        """Set every result slot to NaN (all bits set, in each float type), so that no rank reads a wrong sum."""
        for number in range(self.layout.slots):
            self.slot(self.layout.world, number).fill_(0xFF)
