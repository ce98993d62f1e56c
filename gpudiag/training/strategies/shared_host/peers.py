"""Detect that another rank of an all-reduce has died, has left, or makes no progress."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Sequence

from gpudiag.training.strategies.shared_host import layout as at
from gpudiag.training.strategies.shared_host.control import Control

#: Seconds between two reads of the counters. The end of a process is noticed without this delay.
_POLL_S = 0.2


class PeerWatch:
    """Watch the other ranks in a thread: wait for the end of their processes, and poll their counters.

    Args:
        control: this rank's access to the shared memory.
        pids: process id of each rank.
        timeout_s: maximum seconds without progress while submitted chunks are not reduced.
        give_up: called at most once, in the watching thread, with a problem and a hint.
    """

    def __init__(
        self, control: Control, pids: Sequence[int], timeout_s: float, give_up: Callable[[str, str], None]
    ) -> None:
        self._control, self._timeout_s, self._give_up = control, timeout_s, give_up
        self._others = {rank: pid for rank, pid in enumerate(pids) if rank != control.rank}
        self._handles: dict[int, int] = {}
        self._wake, self._bell = os.pipe()  # closing `_bell` wakes the thread
        for rank, pid in self._others.items():
            # Kernels before 5.3 and some sandboxes have no pidfds. Then process ids are polled.
            with contextlib.suppress(OSError, AttributeError):
                self._handles[os.pidfd_open(pid)] = rank
        self._thread = threading.Thread(target=self._loop, name="gpudiag-peers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        if self._bell >= 0:
            os.close(self._bell)
            self._bell = -1
            if self._thread is not threading.current_thread():
                self._thread.join()

    def _loop(self) -> None:
        """Watch until a rank has a problem or `close` is called."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN | select.POLLHUP)
        for handle in self._handles:
            poll.register(handle, select.POLLIN)
        # Last known (READY, whether submitted chunks are pending), and the time of its last change.
        progress, since = (-1, False), time.monotonic()
        try:
            while True:
                ended = [handle for handle, _ in poll.poll(_POLL_S * 1000)]
                if self._wake in ended:
                    return
                for handle in ended:
                    poll.unregister(handle)
                problem = self._ended(ended) or self._left_behind()
                pending = self._control.get(at.SUBMITTED) != self._control.get(at.READY)
                now = (self._control.get(at.READY), pending)
                if now != progress or not pending:
                    progress, since = now, time.monotonic()
                elif time.monotonic() - since > self._timeout_s:
                    problem = problem or self._stuck()
                if problem is not None:
                    self._give_up(*problem)
                    return
        finally:
            for descriptor in (self._wake, *self._handles):
                os.close(descriptor)

    def _ended(self, handles: list[int]) -> tuple[str, str] | None:
        """Return (problem, hint) for the first rank whose process ended without leaving; None if there is none."""
        ranks = [self._handles[handle] for handle in handles] + ([] if self._handles else self._gone())
        return next(filter(None, (self._end_of(rank) for rank in ranks)), None)

    def _gone(self) -> list[int]:
        """Return the other ranks whose process ids no longer exist."""
        gone = []
        for rank, pid in self._others.items():
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                gone.append(rank)
            except OSError:
                pass  # the process exists, but belongs to another user
        return gone

    def _end_of(self, rank: int) -> tuple[str, str] | None:
        """Return (problem, hint) for a rank whose process has ended; None if it had left the all-reduce before."""
        if self._control.get(at.STATE, rank) == at.LEFT:
            return None
        return (
            f"rank {rank} (process {self._others[rank]}) ended during gradient communication through host memory",
            f"See the output of rank {rank} for why it ended.",
        )

    def _left_behind(self) -> tuple[str, str] | None:
        """Return (problem, hint) for a rank that failed, or left before this rank's last chunk; else None."""
        submitted = self._control.get(at.SUBMITTED)
        for rank in self._others:
            state = self._control.get(at.STATE, rank)
            if state == at.FAILED:
                return f"rank {rank} has stopped communicating", f"See the output of rank {rank} for why."
            if state == at.LEFT and not at.reached(self._control.get(at.SUBMITTED, rank), submitted):
                return (
                    f"rank {rank} has ended its training while rank {self._control.rank} still communicates gradients",
                    "Give all ranks the same number of steps (a DataLoader's drop_last=True, or DDP's join()).",
                )
        return None

    def _stuck(self) -> tuple[str, str]:
        """Return (problem, hint) that name the rank that has submitted the fewest chunks."""
        control = self._control
        counts = [control.get(at.SUBMITTED, rank) for rank in range(control.layout.world)]
        slowest = min(range(len(counts)), key=counts.__getitem__)
        sent = f"rank {slowest} has sent {counts[slowest]} pieces, rank {control.rank} {counts[control.rank]}"
        return (
            f"no gradient was communicated for {self._timeout_s:g} s: {sent}",
            "All ranks must run backward equally often and use the same parameters; if steps are long, wait longer.",
        )
