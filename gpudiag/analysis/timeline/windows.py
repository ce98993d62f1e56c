"""Device windows: the measured span of one device, cut where each step's first device op begins."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.timeline.calibration import ALIKE_OPS, AT_ONCE_NS
from gpudiag.model.timeline import DeviceOps, HostSteps

Times = NDArray[np.int64]

_THREE = 3


class Windows(msgspec.Struct, frozen=True):
    """k windows that tile [bounds[0], bounds[k]); `steps` has their step numbers."""

    bounds: Times
    steps: NDArray[np.int64]


def device_windows(ops: DeviceOps, steps: HostSteps) -> Windows:
    """The windows of one device.

    The window of a step runs from its first device op to the next step's. The first and the last step of a capture are
    left out: the first still holds work launched before the capture, the last has no end. With marks

        step      #3        #4        #5        #6        #7
        first op  21.8 ms   53.1      84.3      115.5     146.7

    the windows are [53.1, 84.3) for #4, [84.3, 115.5) for #5 and [115.5, 146.7) for #6. With fewer than three steps
    nothing is left after that; then what there is becomes the window. If only one step is left of two or three, an edge
    step whose bounds are known is used too (`_two_steps`).
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

    Of three steps these are the middle one, and the last if the device still works when its mark ends, or else the
    first; of two steps both. A step at the edge must hold as much work as its neighbour.

    The end of the last step is known if its mark has an end. A step then begins at its mark, or when the device has
    done the work of the steps before if that is later. Its first op does not say when, because it may follow a wait for
    data. The begin of the first step is known if the device was idle before it, because then it holds no earlier work.

    Args:
        ops: of the device.
        steps: of its process.
        first: begin of the first op of each launched step.
        launched: which of `steps` launched work.
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
    """The windows of a CPU lane: the training thread's own steps, first and last left out likewise."""
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
    """The same windows, cut to the steps that every lane has, so that the lanes are compared over the same work.

    Captures start and end at different instants on different ranks. Where the step numbers have nothing in common (or
    are only counted), the windows stay as they are.
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
