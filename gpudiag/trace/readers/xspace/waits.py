"""Where TensorFlow's executor waited for a device: TensorFlow records no event for it.

Some ops end on the host only when their work has ended on the device: NcclAllReduce, and copies to the host. What comes
after them in the graph is launched then:

    launches   ── grad grad all-reduce ─┤        nothing        ├─ optimizer optimizer ──
    device        ──── grad ──── grad ──── all-reduce ────┤          ├─ optimizer ──
                                                     the wait's end

So a wait is a pause in launching for a device in which the last work that had been launched there ended, shortly before
launching went on; unless the training thread waited for data meanwhile.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import EMPTY, Intervals, intersect, lengths_between, union
from gpudiag.units import NS_PER_US

Times = NDArray[np.int64]

#: The name that these waits are given.
DEVICE_WAIT = "tf.executor waits for the device"

#: Shorter pauses are Python's and the executor's own.
_PAUSE_NS = 500 * NS_PER_US
#: Launching goes on this soon after the work's end: a polling thread notices it and wakes others. Measured: 0.5 to
#: 0.7 ms with four GPUs.
_SOON_NS = 2_000 * NS_PER_US


def device_waits(calls: Intervals, ends: Times, waiting: Intervals) -> tuple[Intervals, NDArray[np.intp]]:
    """The waits of one device's launching, each from the last launch before it to the end of what it waited for.

    Beside them comes which call launched what each waited for.

    Args:
        calls: the n calls that launch work there, by start.
        ends: int64[n], when the work of each had ended.
        waiting: when the training thread waited for data, a normal set.
    """
    if len(calls) < 2:
        return EMPTY, np.empty(0, np.intp)
    reach = np.maximum.accumulate(calls.end)[:-1]
    done = np.maximum.accumulate(ends)[:-1]
    last = np.maximum.accumulate(np.where(ends[:-1] == done, np.arange(len(done)), 0))
    following = calls.start[1:]
    waits = (following - reach >= _PAUSE_NS) & (done > reach) & (done <= following) & (following - done <= _SOON_NS)
    begin, end = reach[waits], done[waits]
    bounds = np.stack([begin, end], axis=1).ravel()
    fetched = lengths_between(intersect(waiting, union(Intervals(begin, end))), bounds)[::2] if len(bounds) else bounds
    own = fetched < _PAUSE_NS
    return Intervals(begin[own], end[own]), last[waits][own]
