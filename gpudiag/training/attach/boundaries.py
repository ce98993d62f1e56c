"""Which calls of the optimizers end a training step? Told from the calls alone, the same on every rank.

A call counts where a forward pass lies between it and the one before: an optimizer that works through its parameters
in groups, or one per parameter that steps within backward, is then counted once. Of several optimizers that one ends a
step which is called least often, and of equals the first.

Worked example. A GAN trains its critic D three times for each G; `.` is a forward pass:

    .D .D .D .G .D .D .D .G .D .D .D .G      D counts 9 times, G 3 times: G ends a step, which takes 4 calls
"""

from __future__ import annotations

from typing import NamedTuple

#: An optimizer that has not been seen this often cannot be told from one that steps now and then.
_SEEN = 3
#: Calls looked at in any case: of a GAN, five of the critic and the first of the other.
FEWEST_CALLS = 6
#: By when every optimizer of a step has been seen `_SEEN` times, unless it is called less than every 13th time.
_MOST = 40


class Call(NamedTuple):
    """An optimizer has stepped: which, and whether a forward pass lies between this call and the one before."""

    optimizer: int
    after_forward: bool


class Boundaries:
    """Looks at the first calls, then says of each call whether it ends a step."""

    def __init__(self) -> None:
        #: Calls after a forward pass, by optimizer, in the order in which they were first seen; None once decided.
        self._seen: dict[int, int] = {}
        self.optimizer: int | None = None
        #: Calls and steps of whole steps, calls of the one that is under way; None where some of its calls were missed.
        self._calls = self._steps = 0
        self._calls_now: int | None = 0

    def ends_step(self, call: Call) -> bool:
        """Whether a step ends with this call; False until that can be told."""
        if self.optimizer is None:
            self._look(call)
            return False
        now = None if self._calls_now is None else self._calls_now + 1
        ends = call.optimizer == self.optimizer and call.after_forward
        if ends and now is not None:
            self._calls, self._steps = self._calls + now, self._steps + 1
        self._calls_now = 0 if ends else now
        return ends

    def missed_calls(self) -> None:
        """The next call ends a step of which it was not told all calls."""
        self._calls_now = None

    @property
    def optimizers(self) -> int:
        """Optimizers that were seen to step by themselves."""
        return len(self._seen)

    @property
    def calls_per_step(self) -> float | None:
        """Calls of all optimizers in a step; None where no step has ended yet."""
        return self._calls / self._steps if self._steps else None

    def _look(self, call: Call) -> None:
        if not call.after_forward:
            return
        self._seen[call.optimizer] = self._seen.get(call.optimizer, 0) + 1
        if sum(self._seen.values()) < FEWEST_CALLS:
            return
        regular = {optimizer: count for optimizer, count in self._seen.items() if count >= _SEEN}
        if len(regular) < len(self._seen) and max(self._seen.values()) < _MOST:
            return
        fewest = min(regular.values())
        self.optimizer = next(optimizer for optimizer, count in regular.items() if count <= fewest + 1)
