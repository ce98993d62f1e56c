"""Notice when another rank of the exchange has died, has left, or does not get on."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Sequence

from gpudiag.training.strategies.shared_host import layout as at
from gpudiag.training.strategies.shared_host.control import Control

#: How often the counters are looked at; a death is told by the kernel at once.
_EVERY_S = 0.2


class PeerWatch:
    """A thread that waits for the end of any other rank's process, and looks at the counters now and then.

    Args:
        control: the shared memory, seen from this rank.
        pids: the process of each rank.
        timeout_s: how long chunks may stay under way without any of them getting on.
        give_up: called once, from the thread, with what is wrong and what to do.
    """

    def __init__(
        self, control: Control, pids: Sequence[int], timeout_s: float, give_up: Callable[[str, str], None]
    ) -> None:
        self._control = control
        self._timeout_s = timeout_s
        self._give_up = give_up
        self._others = {rank: pid for rank, pid in enumerate(pids) if rank != control.rank}
        self._handles: dict[int, int] = {}
        self._wake, self._bell = os.pipe()
        for rank, pid in self._others.items():
            # Kernels before 5.3 and some sandboxes have no such handles; then only counters and signals tell.
            with contextlib.suppress(OSError, AttributeError):
                self._handles[os.pidfd_open(pid)] = rank
        self._thread = threading.Thread(target=self._loop, name="gpudiag-peers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        if self._bell >= 0:
            os.close(self._bell)
            self._bell = -1
            if self._thread is not threading.current_thread():
                self._thread.join()

    def _loop(self) -> None:
        waiting = select.poll()
        waiting.register(self._wake, select.POLLIN | select.POLLHUP)
        for handle in self._handles:
            waiting.register(handle, select.POLLIN)
        seen, since = (-1, False), time.monotonic()
        try:
            while True:
                ended = [number for number, _ in waiting.poll(_EVERY_S * 1000)]
                if self._wake in ended:
                    return
                problem = None
                for handle in ended:
                    waiting.unregister(handle)
                    problem = problem or self._end_of(self._handles[handle])
                if not self._handles:
                    problem = problem or next(filter(None, (self._end_of(rank) for rank in self._gone())), None)
                problem = problem or self._left_behind()
                own = self._control.get(at.SUBMITTED) - self._control.get(at.READY)
                now = (self._control.get(at.READY), own != 0)
                if now != seen or not own:
                    seen, since = now, time.monotonic()
                elif time.monotonic() - since > self._timeout_s:
                    problem = problem or self._stuck()
                if problem is not None:
                    self._give_up(*problem)
                    return
        finally:
            for descriptor in (self._wake, *self._handles):
                os.close(descriptor)

    def _gone(self) -> list[int]:
        gone = []
        for rank, pid in self._others.items():
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                gone.append(rank)
            except OSError:
                pass
        return gone

    def _end_of(self, rank: int) -> tuple[str, str] | None:
        """A process that has left the exchange may end."""
        if self._control.get(at.STATE, rank) == at.LEFT:
            return None
        return (
            f"rank {rank} (process {self._others[rank]}) ended while gradients were exchanged through host memory",
            f"See the output of rank {rank} for why it ended.",
        )

    def _left_behind(self) -> tuple[str, str] | None:
        submitted = self._control.get(at.SUBMITTED)
        for rank in self._others:
            state = self._control.get(at.STATE, rank)
            if state == at.FAILED:
                return f"rank {rank} has given the exchange up", f"See the output of rank {rank} for why."
            if state == at.LEFT and not at.reached(self._control.get(at.SUBMITTED, rank), submitted):
                return (
                    f"rank {rank} has ended its training while rank {self._control.rank} still exchanges gradients",
                    "Give all ranks the same number of steps (a DataLoader's drop_last=True, or DDP's join()).",
                )
        return None

    def _stuck(self) -> tuple[str, str]:
        control = self._control
        counts = [control.get(at.SUBMITTED, rank) for rank in range(control.layout.world)]
        slowest = min(range(len(counts)), key=counts.__getitem__)
        told = f"rank {slowest} has sent {counts[slowest]} pieces, rank {control.rank} {counts[control.rank]}"
        return (
            f"no gradient was exchanged for {self._timeout_s:g} s: {told}",
            "All ranks must run backward equally often and use the same parameters; if steps are long, wait longer.",
        )
