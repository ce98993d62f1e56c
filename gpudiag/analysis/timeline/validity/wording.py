"""Describe ranks in messages."""

from __future__ import annotations

from collections.abc import Iterable

_MOST_SHOWN = 8


def ranks_in_words(ranks: Iterable[int | None]) -> str:
    """List ranks in order, at most eight of them.

    >>> ranks_in_words([2]), ranks_in_words([3, 0])
    ('rank 2', 'ranks 0, 3')
    """
    ordered = sorted({rank or 0 for rank in ranks})
    shown = ", ".join(map(str, ordered[:_MOST_SHOWN])) + (", …" if len(ordered) > _MOST_SHOWN else "")
    return f"rank {shown}" if len(ordered) == 1 else f"ranks {shown}"
