"""Read small files of /proc and /sys, and masks of CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

#: Maximum number of bytes to read; /proc/cpuinfo of a machine with 1024 CPUs has about 1.5 MB.
_MOST_BYTES = 4 << 20


def read_text(path: Path, most: int = _MOST_BYTES) -> str | None:
    """Return the file's text without surrounding blanks, or None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(most).decode(errors="replace").strip()
    except OSError:  # some attributes of a network device cannot be read while it is down
        return None


def read_int(path: Path) -> int | None:
    """Return the integer in the file; None if the file contains no integer or cannot be read."""
    text = read_text(path)
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        return None


def numbers_in_mask(words: Sequence[int], bits_per_word: int = 64) -> tuple[int, ...]:
    """Return the positions of the set bits in a mask of words, lowest word first, as in NVML's CPU and node sets."""
    return tuple(
        i * bits_per_word + bit for i, word in enumerate(words) for bit in range(bits_per_word) if word >> bit & 1
    )
