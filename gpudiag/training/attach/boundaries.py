"""Find the optimizer calls that end a training step, and the step at which all ranks begin to be measured.

Boundaries depend on the calls alone, so that every rank finds the same. A call counts if a forward pass lies between it
and the previous call. Therefore an optimizer that updates its parameters in groups, or one optimizer per parameter that
steps within backward, counts once. The optimizer called least often ends a step; if several are, the first of them.

Worked example. A GAN trains its critic D three times for each G; `.` is a forward pass:

    .D .D .D .G .D .D .D .G .D .D .D .G      D counts 9 times, G 3 times: G ends a step, which takes 4 calls

Ranks agree on the first step without waiting, so that a rank that cannot take part delays no other rank. Each rank
posts its presence once. When rank 0 has seen all ranks, it names a future step, which every rank reads before it
reaches that step. Ranks that synchronize in every step are at most one step apart.

Checking the store takes time, and a rank may never come. Therefore, after the first checks, a rank checks again only
when the intermediate steps have taken `_RATIO` times as long as a check. This bounds the checks to 1/`_RATIO` of the
training time. The step that rank 0 names must lie beyond the next check of every rank, so ranks post the distance of
their checks. A rank posts a larger distance first, applies it after its next check, and never reduces it.

Worked example. Steps take 1.5 ms and rank 1's checks 0.06 ms: 500 times that are 20 steps, rounded up to 32. It posts
that at step 6, checks at steps 1 to 10, then at 42, 74, 106. If rank 0 sees everyone at step 74, it names step
74 + 4 + 32 = 110, which rank 1 has read by step 106 even if it checked at step 74 a moment too early.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

#: Minimum calls of an optimizer that distinguish it from one that steps only occasionally.
_MIN_CALLS = 3
#: Calls observed in any case: of a GAN, five of the critic and the first of the generator.
MIN_OBSERVED_CALLS = 6
#: By then every optimizer of a step has been seen `_MIN_CALLS` times, unless it is called less than every 13th time.
_MAX_CALLS = 40

#: Minimum ratio of the training time to the time of all checks except the first ones.
_RATIO = 500
#: Number of checks at consecutive first steps; if all ranks of a job train, they are present by the third.
_FIRST_CHECKS = 10
#: Minimum distance of later checks, in steps.
_MIN_DISTANCE = 8
#: Steps between the last rank's next check and the first measured step. Also, a rank posts the distance of later checks
#: this many checks before the last of `_FIRST_CHECKS`.
_AHEAD = 4


class OptimizerCall(NamedTuple):
    """A step of an optimizer, and whether a forward pass lies between it and the previous call."""

    optimizer: int
    after_forward: bool


class Boundaries:
    """Observe the first calls, then decide for each call whether it ends a step."""

    def __init__(self) -> None:
        #: Calls after a forward pass, by optimizer, in the order in which they were first seen.
        self._seen: dict[int, int] = {}
        #: The optimizer that ends a step; None until decided.
        self.optimizer: int | None = None
        #: Calls and steps of complete steps; calls of the current step, None if some of them were missed.
        self._calls = self._steps = 0
        self._calls_now: int | None = 0

    def ends_step(self, call: OptimizerCall) -> bool:
        """Return whether this call ends a step; False until the optimizer that ends steps is known."""
        if self.optimizer is None:
            self._observe(call)
            return False
        now = None if self._calls_now is None else self._calls_now + 1
        ends = call.optimizer == self.optimizer and call.after_forward
        if ends and now is not None:
            self._calls, self._steps = self._calls + now, self._steps + 1
        self._calls_now = 0 if ends else now
        return ends

    def missed_calls(self) -> None:
        """Report that calls of the step that ends next were not reported."""
        self._calls_now = None

    @property
    def optimizers(self) -> int:
        """Number of optimizers that step after a forward pass."""
        return len(self._seen)

    @property
    def calls_per_step(self) -> float | None:
        """Calls of all optimizers in a step; None if no step has ended yet."""
        return self._calls / self._steps if self._steps else None

    def _observe(self, call: OptimizerCall) -> None:
        if not call.after_forward:
            return
        self._seen[call.optimizer] = self._seen.get(call.optimizer, 0) + 1
        if sum(self._seen.values()) < MIN_OBSERVED_CALLS:
            return
        regular = {optimizer: count for optimizer, count in self._seen.items() if count >= _MIN_CALLS}
        if len(regular) < len(self._seen) and max(self._seen.values()) < _MAX_CALLS:
            return
        fewest = min(regular.values())
        self.optimizer = next(optimizer for optimizer, count in regular.items() if count <= fewest + 1)


class StartStep(NamedTuple):
    """The first measured step of all ranks; `recorded` is False if some rank's program has its own profiler."""

    step: int
    recorded: bool


class StartBarrier:
    """Agree with the other ranks on the first measured step. The store is None for a job of one process.

    Attributes:
        next_step: `check` need not be called before this step.
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
        self._start: StartStep | None = None
        self.next_step = 0
        #: Steps between two checks: now, and as posted for after the next check.
        self._distance, self._posted_distance = 1, 1
        #: Number of checks, the step and end time of the last check, and the time that posting the distance then took.
        self._checks = self._checked_step = 0
        self._ended_s = self._posting_s = 0.0
        if store is not None:
            self._post()

    def check(self, step: int) -> StartStep | None:
        """Return the common first step, if it is known at this step. Never waits."""
        if self._store is None:
            return StartStep(step, recorded=not self._own_profiler)
        if self._start is None and step >= self.next_step:
            begun_s = self._clock()
            if self._rank == 0:
                self._start = self._name_start(step)
            elif self._store.check(["start"]):
                self._start = StartStep(*json.loads(self._store.get("start")))
            self.next_step = self._start.step if self._start is not None else self._next_check(step, begun_s)
        return self._start

    def _next_check(self, step: int, begun_s: float) -> int:
        """Return the step of the next check; first post the new distance if later checks will be further apart."""
        self._checks += 1
        if self._checks >= _FIRST_CHECKS:
            self._distance = self._posted_distance
        check_s = self._posting_s + self._clock() - begun_s
        self._posting_s = 0.0
        if self._checks >= _FIRST_CHECKS or self._checks == _FIRST_CHECKS - _AHEAD:
            step_s = (begun_s - self._ended_s) / (step - self._checked_step)
            wanted = max(_MIN_DISTANCE, math.ceil(_RATIO * check_s / step_s))
            if wanted > self._posted_distance:
                self._posted_distance = 1 << (wanted - 1).bit_length()
                begun_s = self._clock()
                self._post()
                self._posting_s = self._clock() - begun_s
        self._checked_step, self._ended_s = step, self._clock()
        return step + self._distance

    def _post(self) -> None:
        self._store.set(_key(self._rank), json.dumps([self._own_profiler, self._posted_distance]))

    def _name_start(self, step: int) -> StartStep | None:
        keys = [_key(rank) for rank in range(self._world_size)]
        if not self._store.check(keys):
            return None
        posted = [json.loads(self._store.get(key)) for key in keys]
        first = step + _AHEAD + max(distance for _, distance in posted)
        recorded = not any(own_profiler for own_profiler, _ in posted)
        self._store.set("start", json.dumps([first, recorded]))
        return StartStep(first, recorded)


def _key(rank: int) -> str:
    return f"here/{rank}"
