"""Cut the measured span of a device into windows, where the first device op of each step begins."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.timeline.calibration import ALIKE_OPS, AT_ONCE_NS
from gpudiag.model.timeline import DeviceOps, HostSteps

Times = NDArray[np.int64]

_THREE = 3


class Windows(msgspec.Struct, frozen=True):
    """Consecutive windows: k + 1 bounds, and k step numbers."""

    bounds: Times
    steps: NDArray[np.int64]


def device_windows(ops: DeviceOps, steps: HostSteps) -> Windows:
    """Return the windows of one device.

    The window of a step runs from its first device op to that of the next step. The first and the last step of a
    capture are left out: the first still holds work launched before the capture, the last has no end. With marks

        step      #3        #4        #5        #6        #7
        first op  21.8 ms   53.1      84.3      115.5     146.7

    the windows are [53.1, 84.3) for #4, [84.3, 115.5) for #5 and [115.5, 146.7) for #6. With fewer than three steps the
    whole span becomes the window. With three, an edge step with known bounds is used too (`_edge_step`).
    """
    known = np.flatnonzero(ops.step >= 0)[::-1]
    launched = np.flatnonzero(np.bincount(ops.step[known]))
    if len(launched) == 0:
        return _everything(ops.start, ops.end)
    first = np.empty(len(steps), np.int64)
    first[ops.step[known]] = ops.start[known]  # reversed, so that the first op of each step is written last
    # A copy launched late that ran early must not make a step begin before its predecessor.
    first = np.maximum.accumulate(first[launched])
    numbers = steps.number[launched]
    windows = _tile(first, numbers, int(ops.end.max()))
    if len(first) == _THREE and len(windows.steps) == 1 and bool((np.diff(first) > 0).all()):
        return _edge_step(ops, steps, Windows(first, numbers[:-1]), launched)
    return windows


def _edge_step(ops: DeviceOps, steps: HostSteps, three: Windows, launched: NDArray[np.intp]) -> Windows:
    """Return the windows of the middle step, and of the last or else the first step if it is complete.

    A complete edge step holds as much work as the middle one. The end of the last step is known if its mark has an end
    and the device still worked then: the next step would have begun as soon as that work was done. The start of the
    first step is known if the device was idle before it, so that it holds no work launched before the capture.

    Args:
        ops: of the device.
        steps: of its process.
        three: starts of the three steps; numbers of the first and the middle one.
        launched: indices of the three in `steps`.
    """
    counts = np.bincount(ops.step[ops.step >= 0], minlength=len(steps))[launched]
    whole = np.abs(counts - counts[1]) <= ALIKE_OPS * counts[1]
    last = ops.step == launched[-1]
    end = int(ops.end[last].max())
    inside = bool((ops.launch_end[last] <= steps.end).all())
    if whole[-1] and steps.ends_known and inside and end > steps.end:
        return Windows(np.append(three.bounds[1:], end), np.append(three.steps[1:], steps.number[launched[-1]]))
    begin = three.bounds[0]
    opening = np.flatnonzero(ops.start == begin)
    at_once = bool((begin - ops.launch_end[opening] <= AT_ONCE_NS).any())
    before = ops.end[ops.start < begin]
    if whole[0] and at_once and (len(before) == 0 or int(before.max()) < begin):
        return three
    return Windows(three.bounds[1:], three.steps[1:])


def host_windows(steps: HostSteps) -> Windows:
    """Return the windows of a CPU track: the training thread's steps, without the first and the last."""
    return _tile(steps.start, steps.number, steps.end)


def _tile(first: Times, numbers: NDArray[np.int64], end: int) -> Windows:
    opens = np.concatenate([[True], np.diff(first) > 0])
    first, numbers = first[opens], numbers[opens]
    if len(first) >= 3:
        return Windows(first[1:], numbers[1:-1])
    if len(first) == 2:
        return Windows(first, numbers[:1])
    return Windows(np.array([first[0], max(end, int(first[0]) + 1)], np.int64), numbers[:1])


def _everything(start: Times, end: Times) -> Windows:
    bounds = np.array([start.min(), max(int(end.max()), int(start.min()) + 1)], np.int64)
    return Windows(bounds, np.zeros(1, np.int64))


def common_steps(all_windows: list[Windows]) -> list[Windows]:
    """Restrict the windows to the steps that every track has, so that tracks are compared over the same work.

    Captures start and end at different instants on different ranks. If the step numbers have nothing in common, the
    windows stay as they are.
    """
    if len(all_windows) < 2 or any(len(windows.steps) == 0 for windows in all_windows):
        return all_windows
    low = max(int(windows.steps[0]) for windows in all_windows)
    high = min(int(windows.steps[-1]) for windows in all_windows)
    if low > high:
        return all_windows
    cut = []
    for windows in all_windows:
        a = int(np.searchsorted(windows.steps, low))
        b = int(np.searchsorted(windows.steps, high, side="right"))
        if b <= a:
            return all_windows
        cut.append(Windows(windows.bounds[a : b + 1], windows.steps[a:b]))
    return cut
