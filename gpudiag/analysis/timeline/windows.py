"""Compute device windows: the measured span of one device, cut at the first device op of each step."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.timeline.calibration import ALIKE_OPS, AT_ONCE_NS
from gpudiag.model.timeline import DeviceOps, HostSteps

Times = NDArray[np.int64]

_THREE = 3


class Windows(msgspec.Struct, frozen=True):
    """k windows that tile [bounds[0], bounds[k]); `steps` contains their step numbers."""

    bounds: Times
    steps: NDArray[np.int64]


def device_windows(ops: DeviceOps, steps: HostSteps) -> Windows:
    """Return the windows of one device.

    The window of a step lasts from its first device op to the first device op of the next step. The first and the last
    step are omitted: the first contains work launched before the capture, and the last has no end. With marks

        step      #3        #4        #5        #6        #7
        first op  21.8 ms   53.1      84.3      115.5     146.7

    The windows are [53.1, 84.3) for #4, [84.3, 115.5) for #5 and [115.5, 146.7) for #6. If no step remains, because
    there are fewer than three, the recorded work is one window. If only one of two or three steps remains, an edge step
    with known bounds is used too (`_two_steps`).
    """
    known = np.flatnonzero(ops.step >= 0)[::-1]
    launched = np.flatnonzero(np.bincount(ops.step[known]))
    if len(launched) == 0:
        return _everything(ops.start, ops.end)
    first = np.empty(len(steps), np.int64)
    first[ops.step[known]] = ops.start[known]  # ops are by start: of each step the first is written last
    # A copy that was launched late but ran early must not make a step begin before its predecessor.
    first = np.maximum.accumulate(first[launched])
    numbers = steps.number[launched]
    windows = _tile(first, numbers, int(ops.end.max()))
    if len(first) in {2, 3} and len(windows.steps) == 1 and bool((np.diff(first) > 0).all()):
        return _two_steps(ops, steps, first, launched) or windows
    return windows


def _two_steps(ops: DeviceOps, steps: HostSteps, first: Times, launched: NDArray[np.intp]) -> Windows | None:
    """Return the windows of two steps of a short capture, or None if only one has known bounds.

    Of two steps, both are used. Of three steps, the middle one is used with the last if the device still works when its
    mark ends, or else with the first. A step at the edge must contain as much work as its neighbour.

    The end of the last step is known if its mark has an end. Each step then begins at its mark, or when the device has
    finished the earlier steps if that is later. The first op does not give the begin, because it may follow a wait for
    data. The begin of the first step is known if the device was idle before it, because it contains no earlier work.

    Args:
        ops: the device's work.
        steps: the steps of the device's process.
        first: begin of the first op of each launched step.
        launched: indices of the `steps` that launched work.
    """
    counts = np.bincount(ops.step[ops.step >= 0], minlength=len(steps))[launched]
    whole = np.abs(counts - counts[1]) <= ALIKE_OPS * counts[1]
    begin_known = bool(whole[0]) and _idle_before(ops, int(first[0]))
    last = ops.step == launched[-1]
    end_known = bool(whole[-1]) and steps.ends_known and steps.end > steps.start[launched[-1]]
    end_known = end_known and bool((ops.launch_end[last] <= steps.end).all())
    numbers = steps.number[launched]
    works_on = int(ops.end[last].max()) > steps.end
    if end_known and (works_on if len(first) == _THREE else begin_known):
        marks = np.append(steps.start[launched], steps.end)
        done = [int(ops.end[(ops.step >= 0) & (ops.step <= step)].max()) for step in launched]
        bounds = np.maximum(marks, [marks[0], *done])[-_THREE:]
        if bool((np.diff(bounds) > 0).all()):
            return Windows(bounds, numbers[-2:])
    return Windows(first, numbers[:-1]) if begin_known and len(first) == _THREE else None


def _idle_before(ops: DeviceOps, begin: int) -> bool:
    """Return whether the device was idle before `begin` and the op that begins there followed its launch at once."""
    opening = ops.start == begin
    before = ops.end[ops.start < begin]
    at_once = bool((begin - ops.launch_end[opening] <= AT_ONCE_NS).any())
    return at_once and (len(before) == 0 or int(before.max()) < begin)


def host_windows(steps: HostSteps) -> Windows:
    """Return the windows of a CPU device track: the training thread's steps without the first and the last."""
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
    """Return the windows of the steps that all device tracks have, so that tracks are compared over the same work.

    Captures start and end at different times on different ranks. If the tracks have no common step numbers (or only
    counted ones), the windows stay unchanged.
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
