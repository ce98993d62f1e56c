"""Ranks in messages."""

from __future__ import annotations

from collections.abc import Iterable

_MOST_SHOWN = 8


def ranks_in_words(ranks: Iterable[int | None]) -> str:
    """Ranks in order, the first few of many.

    >>> ranks_in_words([2]), ranks_in_words([3, 0])
    ('rank 2', 'ranks 0, 3')
    """
    every = sorted({rank or 0 for rank in ranks})
    shown = ", ".join(str(rank) for rank in every[:_MOST_SHOWN]) + (", …" if len(every) > _MOST_SHOWN else "")
    return f"rank {shown}" if len(every) == 1 else f"ranks {shown}"
