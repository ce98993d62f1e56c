"""Classify all device ops of a job, and find the times in which its hosts compiled."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.compute.compilation import Compilation, compilations
from gpudiag.analysis.compute.kernel_class import (
    KERNEL_CLASSES,
    KernelClass,
    is_batched,
    is_fused,
    kernel_class,
    tensor_core,
)
from gpudiag.analysis.compute.launchers import launched_in_updates, launching_operators
from gpudiag.model.event import EventTable
from gpudiag.model.timeline import UNKNOWN, DeviceTrack, OpClass, Timeline

#: Classes that multiply matrices; all others but `other` move more bytes than they compute.
MATRIX_CLASSES: tuple[KernelClass, ...] = ("matmul", "convolution", "attention")
#: Characters of a name that are looked at, and distinct kernels that are classified; files come from other people.
_LONGEST_NAME = 2000
_MOST_KERNELS = 20_000
#: Code of an op that is no kernel.
NO_CLASS = len(KERNEL_CLASSES)
CLASS_CODES: dict[KernelClass, int] = {name: code for code, name in enumerate(KERNEL_CLASSES)}


class TrackKernels(msgspec.Struct, frozen=True, kw_only=True):
    """Classes of one track's ops: columns of equal length n, in the order of `DeviceTrack.ops`.

    Attributes:
        row: int64[n], row in the trace's event table.
        kernel_class: uint8[n], index into `KERNEL_CLASSES`, or `NO_CLASS` for copies and communication.
        operator: int64[n], row of the operator that launched the op, or `UNKNOWN`.
        in_update: bool[n], launched within an optimizer's update.
        matrix: int8[n], 1 if the kernel uses tensor cores, 0 if fp32 units, `UNKNOWN` if its name does not say.
        fused: bool[n], kernels that do the work of several operations: fused updates, compiled kernels.
        batched: bool[n], launched by an operator that multiplies many small matrices, as attention does.
    """

    row: NDArray[np.int64]
    kernel_class: NDArray[np.uint8]
    operator: NDArray[np.int64]
    in_update: NDArray[np.bool_]
    matrix: NDArray[np.int8]
    fused: NDArray[np.bool_]
    batched: NDArray[np.bool_]

    def of_class(self, *classes: KernelClass) -> NDArray[np.bool_]:
        """Return bool[n]: the ops of these classes."""
        wanted = np.zeros(NO_CLASS + 1, np.bool_)
        wanted[[CLASS_CODES[name] for name in classes]] = True
        return wanted[self.kernel_class]


class ComputeWork(msgspec.Struct, frozen=True, kw_only=True):
    """Classes of the ops of all tracks, in the order of `Timeline.tracks`, and compilations by index of the trace."""

    tracks: tuple[TrackKernels, ...]
    compilations: dict[int, Compilation]


def compute_work(timeline: Timeline) -> ComputeWork:
    """Classify all ops of a job and find its compilations."""
    return ComputeWork(
        tracks=tuple(_track_kernels(timeline.traces[track.trace].events, track) for track in timeline.tracks),
        compilations={
            track.trace: compilation
            for track in timeline.tracks
            if (compilation := compilations(timeline.traces[track.trace].events, track)) is not None
        },
    )


def _track_kernels(events: EventTable, track: DeviceTrack) -> TrackKernels:
    ops = track.ops
    computes = ops.op_class == OpClass.COMPUTE
    if track.is_cpu:
        operator, in_update = np.full(len(ops), UNKNOWN, np.int64), np.zeros(len(ops), np.bool_)
    else:
        operator, in_update = launching_operators(events, track), launched_in_updates(events, track)
    classes = np.full(len(ops), NO_CLASS, np.uint8)
    matrix = np.full(len(ops), UNKNOWN, np.int8)
    fused, batched = np.zeros(len(ops), np.bool_), np.zeros(len(ops), np.bool_)
    if computes.any():
        launcher = np.where(operator == UNKNOWN, UNKNOWN, events.name[operator])[computes].astype(np.int64)
        names = events.name[ops.row[computes]].astype(np.int64)
        key = (names * (len(events.names) + 1) + launcher + 1) * 2 + in_update[computes]
        distinct_keys, index = np.unique(key, return_inverse=True)
        known = [_classify(events, key) for key in distinct_keys[:_MOST_KERNELS].tolist()]
        known += [(CLASS_CODES["other"], UNKNOWN, 0, 0)] * (len(distinct_keys) - len(known))
        found = np.array(known, np.int64)[index]
        classes[computes], matrix[computes] = found[:, 0], found[:, 1]
        fused[computes], batched[computes] = found[:, 2] > 0, found[:, 3] > 0
    return TrackKernels(
        row=ops.row,
        kernel_class=classes,
        operator=operator,
        in_update=in_update,
        matrix=matrix,
        fused=fused,
        batched=batched,
    )


def _classify(events: EventTable, key: int) -> tuple[int, int, int, int]:
    """Return (class code, use of tensor cores, fused, batched) of kernels with a key of name, operator and update."""
    names, in_update = divmod(key, 2)
    index, launcher = divmod(names, len(events.names) + 1)
    name, operator = events.names[index][:_LONGEST_NAME], events.names[launcher - 1] if launcher else ""
    found = kernel_class(name, operator[:_LONGEST_NAME], in_optimizer=bool(in_update))
    uses = tensor_core(name) if found in MATRIX_CLASSES else None
    code = CLASS_CODES[found]
    return code, UNKNOWN if uses is None else int(uses), int(is_fused(name)), int(is_batched(operator))
