"""At which step do all ranks begin? Agreed without anyone waiting: a rank that cannot take part holds up nobody.

Each rank says once that it is here. When rank 0 sees all of them it names a step some way ahead, which everyone has
read before it comes. Ranks that take their steps together differ by one at most.

Looking at the store takes time, and a rank may never come. So after the first looks a rank looks again only when the
steps between take `_TIMES` as long as a look did: whatever one costs, on however busy a machine, looks stay below
1/`_TIMES` of the training. As the step that rank 0 names must lie beyond everyone's next look, ranks say how far apart
theirs are: first they say that the distance grows, from their next look on it does, and it never shrinks.

Worked example. Steps take 1.5 ms and rank 1's looks 0.06 ms: 500 times that are 20 steps, rounded up to 32. It says so
at step 6, looks at steps 1 to 10, then at 42, 74, 106. Where rank 0 sees everyone at step 74, it names step
74 + 4 + 32 = 110, which rank 1 has read by step 106 even if it looked at step 74 a moment too early.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

#: The training takes at least so many times as long as the looks, but for the first.
_TIMES = 500
#: So many looks at one step after the other: of a job all of whose ranks train they are here by the third.
_FIRST = 10
#: The least distance of later looks, in steps.
_LEAST = 8
#: How far beyond the next look of each the first step is named; so many looks before the last of `_FIRST` a rank says
#: how far apart the later ones will be.
_AHEAD = 4


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
        clock: seconds.

    Attributes:
        next_step: nothing happens before this step: `look` need not be asked.
    """

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        store: Any,
        own_profiler: bool,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._rank = rank
        self._world_size = world_size
        self._store = store
        self._own_profiler = own_profiler
        self._clock = clock
        self._start: Start | None = None
        self.next_step = 0
        #: Steps between two looks: now, and as it was said that they will be from the next look on.
        self._distance, self._said = 1, 1
        #: Looks so far, the step of the last, when it ended, and how long was then said how far apart they will be.
        self._looks = self._looked_at = 0
        self._ended_s = self._said_s = 0.0
        if store is not None:
            self._say()

    def look(self, step: int) -> Start | None:
        """At this step, is it known when all begin? Never waits."""
        if self._store is None:
            return Start(step, recorded=not self._own_profiler)
        if self._start is None and step >= self.next_step:
            begun_s = self._clock()
            if self._rank == 0:
                self._start = self._call(step)
            elif self._store.check(["start"]):
                self._start = Start(*json.loads(self._store.get("start")))
            self.next_step = self._start.step if self._start is not None else self._next_look(step, begun_s)
        return self._start

    def _next_look(self, step: int, begun_s: float) -> int:
        """The step of it; says so first where looks are to be further apart from the one after it on."""
        self._looks += 1
        if self._looks >= _FIRST:
            self._distance = self._said
        looked_s = self._said_s + self._clock() - begun_s
        self._said_s = 0.0
        if self._looks >= _FIRST or self._looks == _FIRST - _AHEAD:
            step_s = (begun_s - self._ended_s) / (step - self._looked_at)
            wanted = max(_LEAST, math.ceil(_TIMES * looked_s / step_s))
            if wanted > self._said:
                self._said = 1 << (wanted - 1).bit_length()
                begun_s = self._clock()
                self._say()
                self._said_s = self._clock() - begun_s
        self._looked_at, self._ended_s = step, self._clock()
        return step + self._distance

    def _say(self) -> None:
        self._store.set(_key(self._rank), json.dumps([self._own_profiler, self._said]))

    def _call(self, step: int) -> Start | None:
        keys = [_key(rank) for rank in range(self._world_size)]
        if not self._store.check(keys):
            return None
        here = [json.loads(self._store.get(key)) for key in keys]
        first = step + _AHEAD + max(said for _, said in here)
        recorded = not any(own_profiler for own_profiler, _ in here)
        self._store.set("start", json.dumps([first, recorded]))
        return Start(first, recorded)


def _key(rank: int) -> str:
    return f"here/{rank}"
