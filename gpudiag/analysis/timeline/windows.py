"""Device windows: the measured span of one device, cut where each step's first device op begins."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.model.timeline import DeviceOps, HostSteps

Times = NDArray[np.int64]


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
    nothing is left after that; then what there is becomes the window.
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
    return _tile(first, numbers, int(ops.end.max()))


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
