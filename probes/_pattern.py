"""Compute the test pattern on the host: the same words as `pattern_word` in kernels.cu."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Words per chunk: 2 MiB, which fit into a core's cache.
_CHUNK = 1 << 18
#: Byte that overwrites old data. The pattern rarely contains this byte.
POISON_BYTE = 0xA5


def fresh_seed() -> int:
    """Return 64 random bits. With a new seed, data from a previous run counts as wrong."""
    return int.from_bytes(os.urandom(8), "little")


def pattern_words(first: int, count: int) -> np.ndarray:
    """Return words `first` to `first + count` of the pattern with seed 0: splitmix64 of the position."""
    with np.errstate(over="ignore"):
        x = np.arange(first + 1, first + count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


class HostPattern:
    """The pattern of seed 0 in memory. The exclusive-or of its words with another seed is the pattern of that seed.

    Args:
        size: bytes, a multiple of 8.
    """

    def __init__(self, size: int) -> None:
        self._words = np.empty(size // 8, dtype=np.uint64)
        self._workers = ThreadPoolExecutor(max(1, min(16, len(os.sched_getaffinity(0)))))
        self._each_chunk(self._words.size, self._make)

    def fill(self, target: np.ndarray, seed: int) -> None:
        """Write the pattern of `seed` into `target` (uint64)."""
        word = np.uint64(seed)
        self._each_chunk(target.size, lambda at, end: np.bitwise_xor(self._words[at:end], word, out=target[at:end]))

    def count_wrong(self, words: np.ndarray, seed: int) -> int:
        """Count the `words` (uint64) that differ from the pattern of `seed`."""
        word = np.uint64(seed)
        return sum(
            self._each_chunk(
                words.size, lambda at, end: int(np.count_nonzero((words[at:end] ^ word) != self._words[at:end]))
            )
        )

    def poison(self, target: np.ndarray) -> None:
        """Overwrite `target` (uint64) with `POISON_BYTE`."""
        word = np.uint64(int.from_bytes(bytes([POISON_BYTE]) * 8, "little"))
        self._each_chunk(target.size, lambda at, end: target[at:end].fill(word))

    def poison_each(self, targets: Iterable[np.ndarray]) -> None:
        """Overwrite several buffers."""
        for target in targets:
            self.poison(target)

    def _make(self, at: int, end: int) -> None:
        self._words[at:end] = pattern_words(at, end - at)

    def _each_chunk(self, count: int, work: Callable[[int, int], Any]) -> list[Any]:
        """Call `work` with begin and end of each chunk of `count` words, in parallel threads."""
        # NumPy releases the interpreter lock inside each operation.
        chunks = [(at, min(count, at + _CHUNK)) for at in range(0, count, _CHUNK)]
        return list(self._workers.map(lambda chunk: work(*chunk), chunks))
