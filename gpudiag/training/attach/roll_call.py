"""At which step do all ranks begin? Agreed without anyone waiting: a rank that cannot take part holds up nobody.

Each rank says once that it is here. When rank 0 sees all of them it names a step some way ahead, which everyone has
read before it comes. Ranks that take their steps together differ by one at most.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

#: The first steps at each of which everyone looks, and the distance of looks after them, which grows with the steps: a
#: rank that never steps is then looked for ever more rarely.
_EACH, _EVERY = 48, 16
#: How far ahead the first step is named, in steps, and in looks once these are rare.
_AHEAD, _LOOKS_AHEAD = 4, 2


class Start(NamedTuple):
    """All ranks begin at this step; `recorded` is False where some rank's program has a profiler of its own."""

    step: int
    recorded: bool


class RollCall:
    """One rank's part.

    Args:
        rank, world_size: of this process.
        store: the job's key-value store; None for a job of one process.
        own_profiler: this rank's program has a profiler of its own.
    """

    def __init__(self, *, rank: int, world_size: int, store: Any, own_profiler: bool) -> None:
        self._rank = rank
        self._world_size = world_size
        self._store = store
        self._own_profiler = own_profiler
        self._start: Start | None = None
        if store is not None:
            store.set(_key(rank), json.dumps(own_profiler))

    def look(self, step: int) -> Start | None:
        """At this step, is it known when all begin? Never waits."""
        if self._store is None:
            return Start(step, recorded=not self._own_profiler)
        if self._start is None and (step < _EACH or step % _distance(step) == 0):
            if self._rank == 0:
                self._start = self._call(step)
            elif self._store.check(["start"]):
                self._start = Start(*json.loads(self._store.get("start")))
        return self._start

    def _call(self, step: int) -> Start | None:
        keys = [_key(rank) for rank in range(self._world_size)]
        if not self._store.check(keys):
            return None
        recorded = not any(json.loads(self._store.get(key)) for key in keys)
        every = _distance(step)
        first = step + _AHEAD if step + _AHEAD < _EACH else (step // every + 1 + _LOOKS_AHEAD) * every
        self._store.set("start", json.dumps([first, recorded]))
        return Start(first, recorded)


def _distance(step: int) -> int:
    """Powers of two, so that looks of the next distance are among those of this: 16 to step 255, then 32 to 511."""
    return max(_EVERY, 1 << step.bit_length() >> 4)


def _key(rank: int) -> str:
    return f"here/{rank}"
