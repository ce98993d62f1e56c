"""Classify all device ops of a job, and find the times in which its hosts compiled."""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.compute.kernel_class import (
    KERNEL_CLASSES,
    KernelClass,
    is_across_rows,
    is_batched,
    is_contiguous_depthwise,
    is_fused,
    kernel_class,
    tensor_core,
)
from gpudiag.analysis.compute.launchers import equal_shares, launched_in_updates, launching_operators
from gpudiag.intervals import Intervals, among, distinct, union
from gpudiag.model.compute_rates import Bound, ComputeClass
from gpudiag.model.event import EventKind, EventTable
from gpudiag.model.timeline import UNKNOWN, Attribution, DeviceTrack, OpClass, Timeline, TrackAttribution
from gpudiag.units import NS_PER_US, milliseconds

#: Ranges that span a compilation. PyTorch marks the phases of compilations by `dynamo_timed`. Lookups in caches of
#: compiled code ("TorchDynamo Cache Lookup", "CompiledFunction") are no compilations.
_COMPILES = re.compile(
    r"\(dynamo_timed\)$|^entire_(frame|backward)_compile|^_compile\.compile_inner|^compile_fx|^backend_compile$"
    r"|^XlaCompile|^XlaCompilationCache|^LocalClient::Compile|^backend_compile_and_load|^PjRt\w*Client::?Compile"
    r"|^(Lower|lower)_?jaxpr|^trace_to_jaxpr|^XlaJit.*Compile|^GpuCompiler::|FuncGraph\.?from_py_func|^torch\._dynamo"
)
#: The outermost range of one compilation, which contains the ranges of the compilation's phases.
_ONE_COMPILATION = re.compile(r"^_compile\.compile_inner")
#: Identity of a compilation in PyTorch's ranges: frame / number of its recompilation.
_FRAME = re.compile(r"compile_id=!?(?P<frame>[\d/]*?\d+)/(?P<again>\d+)\b")


class Compilation(msgspec.Struct, frozen=True, kw_only=True):
    """Compilations of one process.

    Attributes:
        spans: sorted disjoint times in which the training thread or a launching thread compiled, on the common clock.
        starts: int64[k], begins of compilations in ns on the common clock.
        frames: compiled frame → highest number of its recompilations, for PyTorch.
    """

    spans: Intervals
    starts: NDArray[np.int64]
    frames: dict[str, int]


@lru_cache(maxsize=4096)
def compiles(name: str) -> bool:
    """Return whether a host range of this name spans a compilation.

    >>> compiles("_compile.compile_inner (dynamo_timed)"), compiles("TorchDynamo Cache Lookup"), compiles("aten::mm")
    (True, False, False)
    """
    return _COMPILES.search(name) is not None


def compilations(events: EventTable, track: DeviceTrack) -> Compilation | None:
    """Return the compilations of a track's process; None if the process compiled nothing.

    If no range marks a single compilation, each span without a pause counts as one.
    """
    threads = {track.steps.thread, *distinct(track.ops.launch_thread).tolist()}
    rows = events.rows_on(threads, EventKind.OPERATOR, EventKind.ANNOTATION)
    used = distinct(events.name[rows]).tolist()
    wanted = [name for name in used if compiles(events.names[name][:_LONGEST_NAME])]
    if not wanted:
        return None
    compiling = rows[among(events.name[rows], np.array(wanted))]
    spans = union(Intervals(events.start_ns[compiling] + track.shift_ns, events.end_ns[compiling] + track.shift_ns))
    single = np.array([name for name in wanted if _ONE_COMPILATION.search(events.names[name])], np.int64)
    outermost = compiling[among(events.name[compiling], single)]
    starts = events.start_ns[outermost] + track.shift_ns if len(outermost) else spans.start
    frames: dict[str, int] = {}
    for name in used:
        frame = _FRAME.search(events.names[name][:_LONGEST_NAME])
        if frame is not None:
            again = int(frame["again"][:9])  # at most nine digits, because files are untrusted
            frames[frame["frame"]] = max(frames.get(frame["frame"], 0), again)
    return Compilation(spans=spans, starts=starts, frames=frames)


#: Classes that multiply matrices. All other classes are bound by memory, except `other`, whose bound is unknown.
MATRIX_CLASSES: tuple[KernelClass, ...] = ("matmul", "convolution", "attention")
#: Maximum number of examined characters of a name, and of classified distinct kernels, because files are untrusted.
_LONGEST_NAME = 2000
_MOST_KERNELS = 20_000
#: Code of an op that is no kernel.
NO_CLASS = len(KERNEL_CLASSES)
CLASS_CODES: dict[KernelClass, int] = {name: code for code, name in enumerate(KERNEL_CLASSES)}

#: Columns of `TrackKernels` that state a property of the kernel's name and operator.
_FLAGS = ("fused", "batched", "across_rows", "depthwise", "cudnn")


class TrackKernels(msgspec.Struct, frozen=True, kw_only=True):
    """Classes of one track's ops: columns of equal length n, in the order of `DeviceTrack.ops`.

    Attributes:
        row: int64[n], row in the trace's event table.
        kernel_class: uint8[n], index into `KERNEL_CLASSES`, or `NO_CLASS` for copies and communication.
        operator: int64[n], row of the operator that launched the op, or `UNKNOWN`.
        in_update: bool[n], whether the op was launched within an optimizer's update.
        matrix: int8[n], 1 if the kernel uses tensor cores, 0 if fp32 units, `UNKNOWN` if its name does not say.
        fused: bool[n], whether the kernel does the work of several operations: fused updates, compiled kernels.
        batched: bool[n], whether the launching operator multiplies many small matrices, as attention does.
        across_rows: bool[n], whether the kernel reduces a tensor across its rows.
        depthwise: bool[n], whether the kernel computes a depthwise convolution on contiguous tensors.
        cudnn: bool[n], whether the kernel is cuDNN's own according to its name.
    """

    row: NDArray[np.int64]
    kernel_class: NDArray[np.uint8]
    operator: NDArray[np.int64]
    in_update: NDArray[np.bool_]
    matrix: NDArray[np.int8]
    fused: NDArray[np.bool_]
    batched: NDArray[np.bool_]
    across_rows: NDArray[np.bool_]
    depthwise: NDArray[np.bool_]
    cudnn: NDArray[np.bool_]

    def of_class(self, *classes: KernelClass) -> NDArray[np.bool_]:
        """Return bool[n]: whether each op has one of these classes."""
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
    """Classify the ops of one track; equal combinations of name, operator and `in_update` are classified once.

    On a CPU track, the ops are top-level operators, which no operator launched. Kernels beyond the first
    `_MOST_KERNELS` combinations are `other`.
    """
    ops = track.ops
    computes = ops.op_class == OpClass.COMPUTE
    if track.is_cpu:
        operator, in_update = np.full(len(ops), UNKNOWN, np.int64), np.zeros(len(ops), np.bool_)
    else:
        operator, in_update = launching_operators(events, track), launched_in_updates(events, track)
    classes = np.full(len(ops), NO_CLASS, np.uint8)
    matrix = np.full(len(ops), UNKNOWN, np.int8)
    flags = np.zeros((len(_FLAGS), len(ops)), np.bool_)
    if computes.any():
        launcher = np.where(operator == UNKNOWN, UNKNOWN, events.name[operator])[computes].astype(np.int64)
        names = events.name[ops.row[computes]].astype(np.int64)
        key = (names * (len(events.names) + 1) + launcher + 1) * 2 + in_update[computes]
        distinct_keys, index = np.unique(key, return_inverse=True)
        known = [_classify(events, key) for key in distinct_keys[:_MOST_KERNELS].tolist()]
        known += [(CLASS_CODES["other"], UNKNOWN, *(0 for _ in _FLAGS))] * (len(distinct_keys) - len(known))
        properties = np.array(known, np.int64)[index]
        classes[computes], matrix[computes] = properties[:, 0], properties[:, 1]
        flags[:, computes] = properties[:, 2:].T > 0
    return TrackKernels(
        row=ops.row,
        kernel_class=classes,
        operator=operator,
        in_update=in_update,
        matrix=matrix,
        **dict(zip(_FLAGS, flags, strict=True)),
    )


def _classify(events: EventTable, key: int) -> tuple[int, ...]:
    """Return the `_properties` of a kernel.

    `key` is (name * (number of names + 1) + operator + 1) * 2 + `in_update`, with `UNKNOWN` (-1) for no operator.
    """
    names, in_update = divmod(key, 2)
    index, launcher = divmod(names, len(events.names) + 1)
    operator = events.names[launcher - 1][:_LONGEST_NAME] if launcher else ""
    return _properties(events.names[index][:_LONGEST_NAME], operator, in_update=bool(in_update))


@lru_cache(maxsize=16_384)  # because all ranks run the same kernels
def _properties(name: str, operator: str, *, in_update: bool) -> tuple[int, ...]:
    """Return (class code, use of tensor cores, *properties in the order of `_FLAGS`) of a kernel."""
    class_name = kernel_class(name, operator, in_optimizer=in_update)
    uses = tensor_core(name) if class_name in MATRIX_CLASSES else None
    flags = (
        is_fused(name),
        is_batched(operator),
        is_across_rows(class_name, name, operator),
        is_contiguous_depthwise(name),
        "cudnn::" in name,
    )
    return CLASS_CODES[class_name], UNKNOWN if uses is None else int(uses), *map(int, flags)


#: A kernel up to this length is launch-sized: starting and ending it takes most of its time. Physical: an empty kernel
#: takes 2 to 3 µs, and kernels of a full queue follow each other 1.2 µs apart.
LAUNCH_SIZED_NS = 5 * NS_PER_US
#: Classes below this share of the compute bucket are added to `other`.
_LEAST_SHARE = 0.01
#: Parts of the device, and the launch, that can limit a kernel's speed.
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
        by_class, begun = _classes_on_track(track, cut, table)
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


def _classes_on_track(
    track: DeviceTrack, cut: TrackAttribution, table: TrackKernels
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (ns by class and bound, number of begun kernels by class) over all windows of a track."""
    ops = np.flatnonzero(table.kernel_class != NO_CLASS)
    start, end = track.ops.start[ops], track.ops.end[ops]
    # Kernels that run at the same time share each instant of the compute bucket equally.
    shares = equal_shares(Intervals(start, end), cut.parts["compute"])
    classes = table.kernel_class[ops].astype(np.int64)
    limits = _bounds(track, table)[ops]
    width = _UNKNOWN_BOUND + 1
    by_class = np.bincount(classes * width + limits, weights=shares, minlength=(NO_CLASS + 1) * width)
    inside = (start >= cut.bounds[0]) & (start < cut.bounds[-1])
    begun = np.bincount(classes[inside], minlength=NO_CLASS + 1)
    return by_class.astype(np.float64).reshape(NO_CLASS + 1, width), begun.astype(np.float64)


def _bounds(track: DeviceTrack, table: TrackKernels) -> NDArray[np.int64]:
    """Return int64[n]: the bound of each op as an index into `_BOUNDS`, or `_UNKNOWN_BOUND`."""
    if track.is_cpu:
        return np.full(len(track.ops), _UNKNOWN_BOUND, np.int64)
    matrix = table.of_class(*MATRIX_CLASSES)
    bound = np.where(table.of_class("other"), _UNKNOWN_BOUND, _BOUNDS.index("memory"))
    # `table.matrix` is 0 for fp32 units, 1 for tensor cores, and -1 (the last element) if the units are unknown.
    by_units = np.array([_BOUNDS.index("simt"), _BOUNDS.index("tensor-core"), _UNKNOWN_BOUND])[table.matrix]
    bound = np.where(matrix, by_units, bound)
    return np.where(track.ops.end - track.ops.start <= LAUNCH_SIZED_NS, _BOUNDS.index("launch"), bound)


def _main_bound(share_ns: NDArray[np.float64]) -> Bound | None:
    """Return the bound of more than half of a class's time; None if no known bound has so much of the time."""
    first = int(np.argmax(share_ns))
    return _BOUNDS[first] if first != _UNKNOWN_BOUND and 2 * share_ns[first] > share_ns.sum() else None
