"""Sum the compute bucket by class of kernel."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.compute.kernel_class import KERNEL_CLASSES
from gpudiag.analysis.compute.shares import equal_shares
from gpudiag.analysis.compute.work import CLASS_CODES, MATRIX_CLASSES, NO_CLASS, ComputeWork, TrackKernels
from gpudiag.intervals import Intervals
from gpudiag.model.analysis import Bound, ComputeClass
from gpudiag.model.attribution import Attribution, TrackAttribution
from gpudiag.model.timeline import DeviceTrack, Timeline
from gpudiag.units import NS_PER_US, milliseconds

#: A kernel up to this length is launch-sized: starting and ending it takes most of its time. Physical: an empty kernel
#: takes 2 to 3 µs, and kernels of a full queue follow each other 1.2 µs apart.
LAUNCH_SIZED_NS = 5 * NS_PER_US
#: Classes below this share of the bucket are part of `other`.
_LEAST_SHARE = 0.01
_BOUNDS: tuple[Bound, ...] = ("tensor-core", "simt", "memory", "launch")
_UNKNOWN_BOUND = len(_BOUNDS)


def compute_classes(timeline: Timeline, attribution: Attribution, work: ComputeWork) -> tuple[ComputeClass, ...]:
    """Return the classes that sum to the compute bucket, averaged over devices, longest first and `other` last."""
    count = len(timeline.tracks)
    share_ns = np.zeros((NO_CLASS + 1, _UNKNOWN_BOUND + 1))
    kernels = np.zeros(NO_CLASS + 1)
    for track, cut, table in zip(timeline.tracks, attribution.tracks, work.tracks, strict=True):
        steps = len(cut.step_ns)
        if not steps:
            continue
        by_class, begun = _of_track(track, cut, table)
        share_ns += by_class / (steps * count)
        kernels += begun / (steps * count)
    total = share_ns.sum(axis=1)
    other = CLASS_CODES["other"]
    for code in range(NO_CLASS):
        if code != other and total[code] < _LEAST_SHARE * total.sum():
            share_ns[other] += share_ns[code]
            kernels[other] += kernels[code]
            share_ns[code] = kernels[code] = 0.0
    total = share_ns.sum(axis=1)
    order = sorted(np.flatnonzero(total[:NO_CLASS] > 0).tolist(), key=lambda code: (code == other, -total[code]))
    return tuple(
        ComputeClass(
            kernel_class=KERNEL_CLASSES[code],
            ms_per_step=milliseconds(float(total[code])),
            kernels=float(kernels[code]),
            bound=None if code == other else _main_bound(share_ns[code]),
        )
        for code in order
    )


def _of_track(
    track: DeviceTrack, cut: TrackAttribution, table: TrackKernels
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (ns by class and bound, begun kernels by class) over all windows of a track."""
    ops = np.flatnonzero(table.kernel_class != NO_CLASS)
    start, end = track.ops.start[ops], track.ops.end[ops]
    shares = equal_shares(Intervals(start, end), cut.parts["compute"])
    classes = table.kernel_class[ops].astype(np.int64)
    bounds = _bounds(track, table)[ops]
    width = _UNKNOWN_BOUND + 1
    by_class = np.bincount(classes * width + bounds, weights=shares, minlength=(NO_CLASS + 1) * width)
    inside = (start >= cut.bounds[0]) & (start < cut.bounds[-1])
    return by_class.astype(np.float64).reshape(NO_CLASS + 1, width), np.bincount(
        classes[inside], minlength=NO_CLASS + 1
    ).astype(np.float64)


def _bounds(track: DeviceTrack, table: TrackKernels) -> NDArray[np.int64]:
    """Return int64[n]: what bounds each op, an index into `_BOUNDS`, or `_UNKNOWN_BOUND`."""
    if track.is_cpu:
        return np.full(len(track.ops), _UNKNOWN_BOUND, np.int64)
    matrix = table.of_class(*MATRIX_CLASSES)
    bound = np.where(table.of_class("other"), _UNKNOWN_BOUND, _BOUNDS.index("memory"))
    by_units = np.array([_BOUNDS.index("simt"), _BOUNDS.index("tensor-core"), _UNKNOWN_BOUND])[table.matrix]
    bound = np.where(matrix, by_units, bound)
    return np.where(track.ops.end - track.ops.start <= LAUNCH_SIZED_NS, _BOUNDS.index("launch"), bound)


def _main_bound(share_ns: NDArray[np.float64]) -> Bound | None:
    """Return what bounds more than half of a class's time."""
    first = int(np.argmax(share_ns))
    return _BOUNDS[first] if first != _UNKNOWN_BOUND and 2 * share_ns[first] > share_ns.sum() else None
