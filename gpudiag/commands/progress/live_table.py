"""Show live tables of ranks and GPUs during a run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table

from gpudiag.report.figures import milliseconds, size

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gpudiag.machine.inventory.gpus.now import GpuNow
    from gpudiag.training.session.progress import Phase, Progress

#: Window in seconds over which the live step time is averaged.
_PACE_S = 3.0
#: Seconds between two readings of the GPUs. NVML itself averages over a sixth of a second to a second.
_READ_EVERY_S = 1.0
#: Maximum number of ranks in the table. The ranks that are furthest behind are shown.
_MOST_RANKS = 8
_UNKNOWN = "—"

_PHASES: dict[Phase, str] = {
    "starting": "starting",
    "warmup": "warm-up",
    "timed": "timed",
    "lines": "lines",
    "profiled": "recorded",
    "saving": "saving",
    "done": "done",
    "failed": "failed",
}


class LiveTable:
    """A table of ranks (phase, steps, step time, time to fetch batches), and a table of GPUs (utilization, clock, …).

    Step times are computed from the arrival of messages, so that the ranks have no overhead.

    Args:
        read_gpus: called once a second to read the GPUs.
        clock: returns seconds; for tests.
    """

    def __init__(
        self, read_gpus: Callable[[], tuple[GpuNow, ...]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read_gpus, self._clock = read_gpus, clock
        self._latest: dict[int, Progress] = {}
        #: Per rank, arrival time in seconds and number of steps of the messages in the window `_PACE_S`.
        self._arrivals: dict[int, deque[tuple[float, int]]] = {}
        self._gpus: tuple[GpuNow, ...] = ()
        self._read_s = float("-inf")  # time at which the GPUs were read last

    def heard(self, message: Progress) -> None:
        """Process one message."""
        before = self._latest.get(message.rank)
        arrivals = self._arrivals.setdefault(message.rank, deque())
        # Steps are counted anew in each phase, so the messages of an earlier phase are dropped.
        if before is not None and (before.phase != message.phase or before.steps > message.steps):
            arrivals.clear()
        now = self._clock()
        arrivals.append((now, message.steps))
        while now - arrivals[0][0] > _PACE_S and len(arrivals) > 2:  # two messages remain even if a step is longer
            arrivals.popleft()
        self._latest[message.rank] = message

    def __rich__(self) -> RenderableType:
        """Draw the current tables."""
        now = self._clock()
        if now - self._read_s >= _READ_EVERY_S:
            self._gpus, self._read_s = self._read_gpus(), now
        order = list(_PHASES)
        ranks = sorted(self._latest.values(), key=lambda rank: (order.index(rank.phase), rank.steps, rank.rank))
        rank_table = _table(
            ("rank", "phase", "steps", "step ms", "fetching ms"),
            (self._rank(rank) for rank in sorted(ranks[:_MOST_RANKS], key=lambda rank: rank.rank)),
        )
        tables: list[RenderableType] = [rank_table] if ranks else []
        if len(ranks) > _MOST_RANKS:
            tables.append(f"and {len(ranks) - _MOST_RANKS} more ranks, not further behind")
        if self._gpus:
            tables.append(_table(("GPU", "busy", "SM MHz", "W", "memory"), map(_gpu, self._gpus)))
        return Group(*tables)

    def _rank(self, message: Progress) -> tuple[str, ...]:
        """Return the table row of a rank: rank, phase, steps, step time, time to fetch batches."""
        steps = f"{message.steps} of {message.of}" if message.of else str(message.steps or _UNKNOWN)
        return (
            str(message.rank),
            _PHASES[message.phase],
            steps,
            _or_unknown(self._step_ms(message.rank), milliseconds),
            _or_unknown(message.fetching_ms, milliseconds),
        )

    def _step_ms(self, rank: int) -> float | None:
        """Return the mean step time in ms over the last `_PACE_S` seconds; None if no step ended in this time."""
        (first_s, first_steps), (last_s, last_steps) = self._arrivals[rank][0], self._arrivals[rank][-1]
        return 1e3 * (last_s - first_s) / (last_steps - first_steps) if last_steps > first_steps else None


def _gpu(now: GpuNow) -> tuple[str, ...]:
    """Return the table row of a GPU: index, utilization, SM clock, power, memory in use."""
    return (
        str(now.index),
        _or_unknown(now.busy_percent, lambda percent: f"{percent:.0f} %"),
        _or_unknown(now.sm_mhz, lambda mhz: f"{mhz:.0f}"),
        _or_unknown(now.power_watts, lambda watts: f"{watts:.0f}"),
        _or_unknown(now.memory_used_bytes, size),
    )


def _or_unknown(value: float | None, format_value: Callable[[float], str]) -> str:
    return _UNKNOWN if value is None else format_value(value)


def _table(names: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for name in names:
        table.add_column(name, justify="left" if name == "phase" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
