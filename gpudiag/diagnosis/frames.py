"""Which functions of the user's own program made a call, where the profiler recorded stacks (`with_stack=True`).

Frames are recorded as `train.py(42): log_metrics`: the file, relative to where Python finds modules, the line in which
the function begins, and its name.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np

from gpudiag.model.event import EventKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from gpudiag.model.event import EventTable

_FRAME = re.compile(r"(?P<file>[^<>()]+\.py)\(\d+\): .+")
#: Frames of these are not the user's: the standard library, and what a training loop is built on.
_LIBRARIES = sys.stdlib_module_names | {"torch", "torchvision", "torchaudio", "numpy", "gpudiag", "triton", "nvtx"}
_INSTALLED = ("site-packages", "dist-packages", "/lib/python")
#: Calls of the same name nest at most this deep around another's.
_NESTED = 64


def user_frames(events: EventTable, rows: Iterable[int]) -> Counter[str]:
    """How often each function of the user's is the innermost around these host events; empty where none was recorded.

    Args:
        events: one process's events.
        rows: rows of host events.
    """
    counted: Counter[str] = Counter()
    mine = np.fromiter((is_users(name) for name in events.names), np.bool_, len(events.names))
    frames = events.rows_of(EventKind.PYTHON)
    frames = frames[mine[events.name[frames]]]
    if len(frames) == 0:
        return counted
    by_thread: dict[int, NDArray[np.intp]] = {}
    for row in rows:
        thread = int(events.thread[row])
        if thread not in by_thread:
            by_thread[thread] = frames[events.thread[frames] == thread]
        of_thread = by_thread[thread]
        upto = int(np.searchsorted(events.start_ns[of_thread], events.start_ns[row], side="right"))
        around = of_thread[max(0, upto - _NESTED) : upto]
        around = around[events.end_ns[around] >= events.end_ns[row]]
        if len(around):
            counted[events.name_of(int(around[-1]))] += 1
    return counted


def is_users(name: str) -> bool:
    """Whether an event of this name is a function of the user's own program.

    >>> is_users("train.py(42): log_metrics")
    True
    >>> is_users("torch/nn/modules/module.py(1782): _call_impl"), is_users("typing.py(2268): cast")
    (False, False)
    >>> is_users("<built-in method item of Tensor object at 0x7f68>"), is_users("nn.Module: Linear_0")
    (False, False)
    """
    match = _FRAME.fullmatch(name)
    if match is None:
        return False
    path = match["file"]
    module = path.split("/", 1)[0].removesuffix(".py")
    return module not in _LIBRARIES and not any(place in path for place in _INSTALLED)


def time_in(events: EventTable, thread: int, begin_ns: int, end_ns: int) -> dict[str, int]:
    """How long each function of the user's was the innermost of the user's on a thread, in ns, within a span.

    Args:
        events: one process's events.
        thread: the thread.
        begin_ns, end_ns: the span, on the events' own clock.
    """
    mine = np.fromiter((is_users(name) for name in events.names), np.bool_, len(events.names))
    frames = events.rows_of(EventKind.PYTHON)
    frames = frames[mine[events.name[frames]] & (events.thread[frames] == thread)]
    frames = frames[(events.end_ns[frames] > begin_ns) & (events.start_ns[frames] < end_ns)]
    total: dict[str, int] = defaultdict(int)
    open_frames: list[tuple[int, str]] = []
    starts = np.maximum(events.start_ns[frames], begin_ns).tolist()
    ends = np.minimum(events.end_ns[frames], end_ns).tolist()
    for row, start, end in zip(frames.tolist(), starts, ends, strict=True):
        while open_frames and open_frames[-1][0] <= start:
            open_frames.pop()
        name = events.name_of(row)
        # A frame that ends after the one around it (a broken record) counts as far as that goes.
        stop = min(end, open_frames[-1][0]) if open_frames else end
        total[name] += stop - start
        if open_frames:
            total[open_frames[-1][1]] -= stop - start
        open_frames.append((stop, name))
    return dict(total)
