"""Small files of /proc and /sys: read whole, bounded, and None where they cannot be read."""

from __future__ import annotations

from pathlib import Path

_MOST_BYTES = 4 << 20
"""/proc/cpuinfo of a machine with 1024 CPUs is about 1.5 MB."""


def read_text(path: Path, most: int = _MOST_BYTES) -> str | None:
    """The file's text without surrounding blanks, or None where it is missing, unreadable, or answers with an error."""
    try:
        with path.open("rb") as file:
            return file.read(most).decode(errors="replace").strip()
    except OSError:  # also what sysfs attributes of a device that is down answer with
        return None


def read_int(path: Path) -> int | None:
    """The whole number in the file, or None."""
    text = read_text(path)
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        return None
