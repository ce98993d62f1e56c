"""How the ranks of a command enter each phase at the same step, without ever stopping each other for long.

The ranks of a job that takes its steps together are never more than a step apart, so that the wait for a decision is as
long as the next collective would have waited in any case. Ranks of other jobs drift apart. Who has waited for
`_LEAST_S` and `_STEPS` of its own steps parts from the others: it says so in the store, and from then on every rank
decides for itself. That costs a job one such wait at most.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable

from gpudiag.training.session.agreement import Agreement, Verdict

#: A rank waits for this many seconds, and this many of its own steps, in all.
_LEAST_S, _STEPS = 2.0, 10
_APART = "apart"


class AttachedAgreement(Agreement):
    """Decides together as long as all ranks come to the same steps, and then each for itself.

    Attributes:
        apart: this rank decides for itself.
    """

    apart = False
    _until_s = 0.0

    def decide(self, step_ms: list[float], judge: Callable[[list[list[float]]], Verdict]) -> Verdict:
        """Return the verdict of all ranks; this rank's own where they are apart. Raises nothing."""
        if not self.apart and self._store is not None:
            typical_s = statistics.median(step_ms) / 1e3 if step_ms else 0.0
            self._until_s = time.monotonic() + _LEAST_S + _STEPS * typical_s
            try:
                verdict = super().decide(step_ms, judge)
            except Exception:  # noqa: BLE001  # nobody came, they are apart already, or the store is gone
                verdict = Verdict(ended=True)
            if not verdict.ended:
                return verdict
            self.part()
        # Rank 0 has judged the times of all ranks so far, or would have: its own stand for theirs.
        copies = self._place.world_size if self._place.rank == 0 and self._store is not None else 1
        return judge([step_ms] * copies)

    def part(self) -> None:
        """Decide for itself from now on, and tell the others. Never waits."""
        self.apart = True
        if self._store is not None:
            with contextlib.suppress(Exception):
                self._store.set(_APART, "1")

    def _wait(self, *keys: str, timeout_s: float | None = None) -> str:
        left_s = max(0.0, self._until_s - time.monotonic())
        found = super()._wait(*keys, _APART, timeout_s=left_s if timeout_s is None else timeout_s)
        if found == _APART:
            raise TimeoutError("the ranks have parted")
        return found
