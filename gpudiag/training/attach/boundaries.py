"""Find the optimizer calls that end a training step, and agree with the other ranks on the first measured step.

Only the sequence of calls determines the steps, so every rank finds the same steps. A call counts if a forward pass
has run since the previous call. A program may call several optimizers in sequence: one for each group of parameters
or, within backward, one for each parameter. Only the first call of such a sequence counts. The optimizer with the
fewest counted calls ends a step. If several optimizers have the fewest calls, the first called of them ends a step.

Worked example. A GAN trains its critic D three times for each training of its generator G; `.` is a forward pass:

    .D .D .D .G .D .D .D .G .D .D .D .G      D counts 9 times, G 3 times: G ends a step, which takes 4 calls

Ranks agree on the first measured step through a key-value store without waiting, so that an absent rank delays no other
rank. Each rank posts its presence. When rank 0 has seen all ranks, it posts the number of a future step. Every rank
reads this number before it reaches that step. Ranks that synchronize in every step are at most one step apart.

Checking the store takes time, and a rank may never come. Therefore, after the first checks, a rank checks the store
again only when the steps since its last check have taken `_RATIO` times as long as a check. So the checks take at most
1/`_RATIO` of the training time. The step that rank 0 posts must come after the next check of every rank. Therefore each
rank posts the number of steps between its checks, and posts an increase of this number before the increase applies.

Worked example. Steps take 1.5 ms and rank 1's checks 0.06 ms. 500 times 0.06 ms is the time of 20 steps, rounded up to
32 (a power of two). Rank 1 checks at steps 1 to 10, posts 32 at step 6, and checks again at steps 42, 74 and 106. If
rank 0 sees all ranks at step 74, rank 0 posts step 74 + 4 + 32 = 110. If rank 1 checks at step 74 before rank 0 posts,
rank 1 reads the number at step 106.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

#: Number of calls after which an optimizer is regarded as one that steps regularly.
_MIN_CALLS = 3
#: Minimum number of observed calls. A GAN may call its critic's optimizer five times before its generator's optimizer.
MIN_OBSERVED_CALLS = 6
#: Number of calls of one optimizer after which optimizers with fewer than `_MIN_CALLS` calls are ignored. An optimizer
#: that steps once in 13 calls of another one has three calls by then.
_MAX_CALLS = 40

#: Minimum ratio of the training time to the time of the checks that follow the first `_FIRST_CHECKS` checks.
_RATIO = 500
#: Number of checks that are made at every step; later checks are further apart. If all ranks of a job train, they are
#: present at the third check.
_FIRST_CHECKS = 10
#: Minimum number of steps between two later checks.
_MIN_DISTANCE = 8
#: Number of steps from the latest of all ranks' next checks to the first measured step. At check number
#: `_FIRST_CHECKS - _AHEAD` a rank posts the number of steps between its later checks for the first time.
_AHEAD = 4


class OptimizerCall(NamedTuple):
    """A step of an optimizer (its `id`), and whether a forward pass has run since the thread's previous step."""

    optimizer: int
    after_forward: bool


class Boundaries:
    """Observe the first calls, then decide for each call whether it ends a step."""

    def __init__(self) -> None:
        #: Number of calls after a forward pass, by optimizer; optimizers are in the order of their first calls.
        self._seen: dict[int, int] = {}
        #: `id` of the optimizer that ends a step; None until it is known.
        self.optimizer: int | None = None
        #: Number of steps of which all optimizer calls were reported, and number of these calls.
        self._steps = self._calls = 0
        #: Number of calls in the current step; None if some of them were not reported.
        self._calls_now: int | None = 0

    def ends_step(self, call: OptimizerCall) -> bool:
        """Return whether this call ends a step; False until `optimizer` is known."""
        if self.optimizer is None:
            self._observe(call)
            return False
        calls_now = None if self._calls_now is None else self._calls_now + 1
        ends = call.optimizer == self.optimizer and call.after_forward
        if ends and calls_now is not None:
            self._calls, self._steps = self._calls + calls_now, self._steps + 1
        self._calls_now = 0 if ends else calls_now
        return ends

    def missed_calls(self) -> None:
        """Exclude the current step from `calls_per_step`, because some of its calls were not passed to `ends_step`."""
        self._calls_now = None

    @property
    def optimizers(self) -> int:
        """Number of optimizers that step after a forward pass."""
        return len(self._seen)

    @property
    def calls_per_step(self) -> float | None:
        """Mean number of calls of all optimizers in a step; None if no step has ended yet."""
        return self._calls / self._steps if self._steps else None

    def _observe(self, call: OptimizerCall) -> None:
        """Count the call; once enough calls are seen, determine the optimizer that ends a step."""
        if not call.after_forward:
            return
        self._seen[call.optimizer] = self._seen.get(call.optimizer, 0) + 1
        if sum(self._seen.values()) < MIN_OBSERVED_CALLS:
            return
        regular = {optimizer: count for optimizer, count in self._seen.items() if count >= _MIN_CALLS}
        if len(regular) < len(self._seen) and max(self._seen.values()) < _MAX_CALLS:
            return  # an optimizer with few calls may step regularly, but rarely
        fewest = min(regular.values())
        # Of optimizers that are called equally often, the first one has one call more in the middle of a step.
        self.optimizer = next(optimizer for optimizer, count in regular.items() if count <= fewest + 1)


class StartStep(NamedTuple):
    """The first step that all ranks measure. `recorded` is False if the program of any rank has its own profiler."""

    step: int
    recorded: bool


class StartBarrier:
    """Agree with the other ranks on the first measured step, through the key-value store `store`.

    The store is None for a job of one process. `own_profiler` is True if this rank's program has created a profiler.
    `clock` returns seconds. `check` need not be called before the step `next_step`.
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
        self._rank, self._world_size, self._store = rank, world_size, store
        self._own_profiler, self._clock = own_profiler, clock
        self._start: StartStep | None = None
        self.next_step = 0
        #: Current number of steps between two checks, and the posted number, which applies from the next check on.
        self._distance, self._posted_distance = 1, 1
        self._checks = 0
        #: Step and end time of the last check.
        self._checked_step, self._ended_s = 0, 0.0
        #: Seconds that posting `_posted_distance` took after the last check.
        self._posting_s = 0.0
        if store is not None:
            self._post()

    def check(self, step: int) -> StartStep | None:
        """Return the first step that all ranks measure; None if it is not known yet. The method never waits.

        `step` is the number of steps of this rank that have ended. A job of one process begins with this step.
        """
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
        """Return the step of the next check. If later checks must be further apart, post their new distance.

        Args:
            step: the step of the current check.
            begun_s: time at which the current check began, in seconds.
        """
        self._checks += 1
        if self._checks >= _FIRST_CHECKS:
            self._distance = self._posted_distance
        check_s = self._posting_s + self._clock() - begun_s
        self._posting_s = 0.0
        if self._checks >= _FIRST_CHECKS or self._checks == _FIRST_CHECKS - _AHEAD:
            step_s = (begun_s - self._ended_s) / (step - self._checked_step)
            distance = max(_MIN_DISTANCE, math.ceil(_RATIO * check_s / step_s))
            if distance > self._posted_distance:
                self._posted_distance = 1 << (distance - 1).bit_length()  # a power of two, to rise rarely
                begun_s = self._clock()
                self._post()
                self._posting_s = self._clock() - begun_s
        self._checked_step, self._ended_s = step, self._clock()
        return step + self._distance

    def _post(self) -> None:
        self._store.set(_key(self._rank), json.dumps([self._own_profiler, self._posted_distance]))

    def _name_start(self, step: int) -> StartStep | None:
        """Post and return the first measured step if all ranks are present, else return None. Rank 0 calls this."""
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
