"""Sets of CPUs (or nodes) in the kernel's list notation: `0-15,32-47`."""

from __future__ import annotations

from collections.abc import Sequence

_MOST = 65536


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """The numbers of a list such as `0-3,8`, in order.

    Raises:
        ValueError: it is no such list, or it names numbers of 65536 or more.
    """
    numbers: set[int] = set()
    for part in filter(None, (part.strip() for part in text.strip().split(","))):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not 0 <= low <= high < _MOST:
            raise ValueError(f"not a CPU list: {text!r}")
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


def numbers_in_mask(words: Sequence[int], bits_per_word: int = 64) -> tuple[int, ...]:
    """Numbers of the set bits in a mask given as words, lowest word first (NVML's CPU and node sets)."""
    return tuple(
        i * bits_per_word + bit for i, word in enumerate(words) for bit in range(bits_per_word) if word >> bit & 1
    )
