"""How the ranks of a job enter each phase at the same step, without a collective of their own.

Between two steps, and only where warm-up may end, every rank posts its step times to the job's key-value store and
waits for rank 0's verdict. The store is the one that the process group rendezvoused with, or torchrun's own.
A rank whose loop has ended says so once, and nobody waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpudiag.model.structs import msgspec
from gpudiag.training.session.place import Place


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What rank 0 decided.

    `again` is the number of warm-up steps until the next decision, 0 when warm-up is over; `steps` is how many steps
    are then timed; `ended` says that some rank's loop is over, and that what was measured is all there will be.
    `run_id` tells the run from others in the same place.
    """

    again: int = 0
    settled: bool = False
    steps: int = 0
    ended: bool = False
    run_id: str = ""


class Agreement:
    """The ranks of one session and the store through which they agree. A job of one process needs no store.

    `run_id` is the run's on every rank once something was decided; rank 0's is given.
    """

    def __init__(self, place: Place, store: Any, *, timeout_s: float, run_id: str = "") -> None:
        self.run_id = run_id if place.rank == 0 else ""
        self._place = place
        self._store = store
        self._timeout_s = timeout_s
        self._decision = 0

    def decide(self, step_ms: list[float], judge: Callable[[list[list[float]]], Verdict]) -> Verdict:
        """Wait until all ranks are here, and return the same verdict on each.

        Args:
            step_ms: this rank's step times in milliseconds.
            judge: called on rank 0 with the step times of every rank, in order of rank.

        Raises:
            TimeoutError: a rank did not come in time.
        """
        if self._store is None:
            return judge([step_ms])
        decision = self._decision
        self._decision += 1
        self._store.set(self._key(decision, self._place.rank), msgspec.json.encode(step_ms).decode())
        if self._place.rank != 0:
            self._wait(self._key(decision, "verdict"))
            told = msgspec.json.decode(self._store.get(self._key(decision, "verdict")), type=Verdict)
            self.run_id = self.run_id or told.run_id
            return told
        posted: list[list[float]] = []
        ended = False
        for rank in range(self._place.world_size):
            key = self._key(decision, rank)
            if self._wait(key, self._left(rank)) == key:
                posted.append(msgspec.json.decode(self._store.get(key), type=list[float]))
            else:
                ended = True
        verdict = msgspec.structs.replace(Verdict(ended=True) if ended else judge(posted), run_id=self.run_id)
        self._store.set(self._key(decision, "verdict"), msgspec.json.encode(verdict).decode())
        return verdict

    def leave(self) -> None:
        """Say that this rank's loop is over. Never waits."""
        if self._store is None:
            return
        try:
            self._store.set(self._left(self._place.rank), "1")
            if self._place.rank == 0:
                # Whoever comes to a decision that rank 0 will not make finds it made.
                ended = msgspec.json.encode(Verdict(ended=True)).decode()
                self._store.set(self._key(self._decision, "verdict"), ended)
        except Exception:  # noqa: BLE001, S110  # the store's host may be gone already, and with it everyone who waits
            pass

    def wait_for_all(self, *, timeout_s: float) -> bool:
        """On rank 0, at the end: wait until every rank has left; False when some have not in this time."""
        if self._store is None:
            return True
        try:
            for rank in range(self._place.world_size):
                self._wait(self._left(rank), timeout_s=timeout_s)
        except Exception:  # noqa: BLE001  # a late rank and a lost store come to the same: write what is there
            return False
        return True

    def _key(self, decision: int, of: int | str) -> str:
        return f"{decision}/{of}"

    def _left(self, rank: int) -> str:
        return f"left/{rank}"

    def _wait(self, *keys: str, timeout_s: float | None = None) -> str:
        """Wait until one of the keys is set and return it; the first of them wins.

        Asked again and again and not through the store's own wait, which knows no "one of" and holds the interpreter
        lock of a process that is to be interrupted.
        """
        until = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        pause_s = 0.0005
        while True:
            for key in keys:
                if self._store.check([key]):
                    return key
            if time.monotonic() > until:
                raise TimeoutError(f"rank {self._place.rank} waited in vain for its peers to reach the same step")
            time.sleep(pause_s)
            pause_s = min(0.02, pause_s * 1.5)
