"""Agree with the job's other ranks on the step at which each phase begins, without a collective.

At certain steps every rank posts its step times to the job's key-value store, and waits for rank 0's decision on the
next phase. The store is that of the process group or of torchrun, or a directory. A rank whose loop has ended posts
this fact, so that no other rank waits for its step times.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpudiag.model.structs import msgspec
from gpudiag.training.session.position import ClusterPosition

#: Environment variable that the launcher sets to the directory of a `DirectoryStore`.
STORE_VARIABLE = "GPUDIAG_STORE"

#: A rank of a user's command waits for other ranks at most `_MAX_WAIT_S` plus `_MAX_WAIT_STEPS` times its step time.
_MAX_WAIT_S, _MAX_WAIT_STEPS = 2.0, 10
#: Key that a rank posts when ranks shall decide alone (see `SplittableAgreement`).
_SPLIT_KEY = "apart"


class PhaseDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Rank 0's decision on the next phase.

    Attributes:
        more_warmup: number of warm-up steps until the next decision; 0 if warm-up is over.
        converged: True if step times have converged.
        unprofiled_steps: number of unprofiled steps that follow.
        line_steps: number of steps after the unprofiled steps in which the lines of the user's source are timed.
        ended: True if the loop of any rank has ended, so that no further step can be measured.
        run_id: distinguishes the run from other runs in the same directory.
    """

    more_warmup: int = 0
    converged: bool = False
    unprofiled_steps: int = 0
    line_steps: int = 0
    ended: bool = False
    run_id: str = ""


#: Function that makes the decision on rank 0 from the step times of all ranks in ms, in the order of ranks.
Judge = Callable[[list[list[float]]], PhaseDecision]


class Agreement:
    """Agree on the decisions of one session through the job's key-value store, which is None for a single process.

    A rank waits `timeout_s` seconds for a decision. Only rank 0 uses `run_id`; the other ranks receive it from rank 0.
    """

    def __init__(self, position: ClusterPosition, store: Any, *, timeout_s: float, run_id: str = "") -> None:
        self.run_id = run_id if position.rank == 0 else ""
        self._position, self._store, self._timeout_s = position, store, timeout_s
        self._decision = 0

    def decide(self, step_ms: list[float], judge: Judge) -> PhaseDecision:
        """Post this rank's step times, and return the decision that rank 0 makes when all ranks have posted.

        If the loop of any rank has ended, `judge` is not called, and the decision has `ended` set.

        Args:
            step_ms: this rank's step times in milliseconds.
            judge: makes the decision, on rank 0 or in a single process without a store.

        Raises:
            TimeoutError: a rank did not post its step times in time.
        """
        if self._store is None:
            return judge([step_ms])
        number = self._decision
        self._decision += 1
        self._store.set(f"{number}/{self._position.rank}", msgspec.json.encode(step_ms).decode())
        if self._position.rank != 0:
            self._wait(_decision_key(number))
            decision = msgspec.json.decode(self._store.get(_decision_key(number)), type=PhaseDecision)
            self.run_id = self.run_id or decision.run_id
            return decision
        posted = self._collect(number)
        decision = PhaseDecision(ended=True) if posted is None else judge(posted)
        decision = msgspec.structs.replace(decision, run_id=self.run_id)
        self._store.set(_decision_key(number), msgspec.json.encode(decision).decode())
        return decision

    def _collect(self, number: int) -> list[list[float]] | None:
        """Wait for the step times of all ranks and return them; None if the loop of any rank has ended."""
        posted: list[list[float]] = []
        ended = False
        for rank in range(self._position.world_size):
            key = f"{number}/{rank}"
            if self._wait(key, _left_key(rank)) == key:
                posted.append(msgspec.json.decode(self._store.get(key), type=list[float]))
            else:
                ended = True
        return None if ended else posted

    def leave(self) -> None:
        """Post the end of this rank's loop. The method never waits."""
        if self._store is None:
            return
        # A failure means that the process that hosts the store has exited. In this case no rank waits for this post.
        with contextlib.suppress(Exception):
            self._store.set(_left_key(self._position.rank), "1")
            if self._position.rank == 0:
                # Release the ranks that wait for rank 0's decision.
                ended = msgspec.json.encode(PhaseDecision(ended=True)).decode()
                self._store.set(_decision_key(self._decision), ended)

    def wait_for_all(self, *, timeout_s: float) -> bool:
        """On rank 0, wait up to `timeout_s` for the end of each rank's loop; return False if a loop has not ended."""
        if self._store is None:
            return True
        try:
            for rank in range(self._position.world_size):
                self._wait(_left_key(rank), timeout_s=timeout_s)
        except Exception:  # noqa: BLE001 # a rank is late, the ranks have split, or the store is lost
            return False
        return True

    def _wait(self, *keys: str, timeout_s: float | None = None) -> str:
        """Wait until one of the keys is set, and return this key. Raise TimeoutError after the timeout.

        The method polls, because the store's own `wait` waits for all keys, not for one of several. The store's `wait`
        also holds the interpreter lock, so that Ctrl-C could not interrupt the wait.
        """
        until = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        pause_s = 0.0005
        while True:
            for key in keys:
                if self._store.check([key]):
                    return key
            if time.monotonic() > until:
                raise TimeoutError(f"rank {self._position.rank} waited too long for its peers to reach the same step")
            time.sleep(pause_s)
            pause_s = min(0.02, pause_s * 1.5)  # poll less often in a long wait


class SplittableAgreement(Agreement):
    """Agreement between the ranks of a user's command, in which the wait for other ranks is short.

    Ranks that synchronize in every step are at most one step apart. Such ranks wait for a decision no longer than they
    would otherwise wait in their next collective. Ranks that do not synchronize drift apart. A rank that has waited too
    long posts a split: from then on every rank decides alone. So a job has at most one long wait.

    Attributes:
        split: True if this rank decides alone.
    """

    split = False
    _until_s = 0.0  # end of the wait for the current decision, in seconds of `time.monotonic`

    def decide(self, step_ms: list[float], judge: Judge) -> PhaseDecision:
        """Return rank 0's decision, or after a split this rank's decision.

        A rank that is late or has ended, or a lost store, causes a split.
        """
        if not self.split and self._store is not None:
            typical_s = statistics.median(step_ms) / 1e3 if step_ms else 0.0
            self._until_s = time.monotonic() + _MAX_WAIT_S + _MAX_WAIT_STEPS * typical_s
            try:
                decision = super().decide(step_ms, judge)
            except Exception:  # noqa: BLE001  # a rank is late, the ranks have split, or the store is lost
                decision = PhaseDecision(ended=True)
            if not decision.ended:
                return decision
            self.decide_alone()
        # On rank 0, `judge` expects the times of all ranks. After a split, pass rank 0's times for each rank.
        copies = self._position.world_size if self._position.rank == 0 and self._store is not None else 1
        return judge([step_ms] * copies)

    def decide_alone(self) -> None:
        """Let this rank decide alone from now on, and post the split. The method never waits."""
        self.split = True
        if self._store is not None:
            with contextlib.suppress(Exception):
                self._store.set(_SPLIT_KEY, "1")

    def _wait(self, *keys: str, timeout_s: float | None = None) -> str:
        """Wait as the base class does, by default until `_until_s`. Raise TimeoutError also if the ranks have split."""
        left_s = max(0.0, self._until_s - time.monotonic())
        key = super()._wait(*keys, _SPLIT_KEY, timeout_s=left_s if timeout_s is None else timeout_s)
        if key == _SPLIT_KEY:
            raise TimeoutError("the ranks have split")
        return key


class DirectoryStore:
    """A key-value store for the processes of one node, with the methods of torch's `Store` that `Agreement` calls.

    Each key is a file that is written atomically. The caller passes a `directory` that is empty or missing, in a place
    that only the user can access.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def set(self, key: str, value: str) -> None:
        """Set a key."""
        handle, name = tempfile.mkstemp(dir=self._directory, prefix=".")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(value)
        Path(name).replace(self._path(key))

    def get(self, key: str) -> bytes:
        """Return the value of a key; raise FileNotFoundError if the key is not set."""
        return self._path(key).read_bytes()

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are set."""
        return all(self._path(key).is_file() for key in keys)

    def _path(self, key: str) -> Path:
        return self._directory / quote(key, safe="")


def _decision_key(number: int) -> str:
    return f"{number}/verdict"


def _left_key(rank: int) -> str:
    return f"left/{rank}"
