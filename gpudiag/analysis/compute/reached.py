"""Compute the rates that kernels of each class reached, from operators' shapes, as shares of the device's peaks."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.compute.work import CLASS_CODES, MATRIX_CLASSES, NO_CLASS, ComputeWork, TrackKernels
from gpudiag.model.compute_rates import PRECISIONS, ComputeClass, peak_memory_gb_per_s, peak_tflops
from gpudiag.model.event import NO_NUMBER, OperatorWork
from gpudiag.model.timeline import UNKNOWN, Attribution, Timeline

#: Classes whose peak is that of the matrix units.
_MATRIX_CODES = [CLASS_CODES[name] for name in MATRIX_CLASSES]
#: A share of the peak is stated if the peak is known for this share of the time of kernels with known work.
_PEAK_KNOWN = 0.9
#: Limit of rates in JSON, because shapes in hostile files may give higher rates.
_MOST = 1e15


class _Launchers(NamedTuple):
    """Operators whose kernels ran in the windows of a track: columns of equal length.

    Attributes:
        row: index into `OperatorWork`'s columns.
        code: class of kernels for which each operator counts.
        time_ns: time of each operator's kernels of this class.
        units: whether these kernels use tensor cores (1) or fp32 units (0); `UNKNOWN` if their names do not say.
    """

    row: NDArray[np.intp]
    code: NDArray[np.int64]
    time_ns: NDArray[np.float64]
    units: NDArray[np.int64]


class _Sums(NamedTuple):
    """Sums by class, float64[classes]: work, its time, its time with a known peak, and its time at that peak."""

    amount: NDArray[np.float64]
    time_ns: NDArray[np.float64]
    peak_known_ns: NDArray[np.float64]
    at_peak_ns: NDArray[np.float64]


def with_reached(
    classes: tuple[ComputeClass, ...], timeline: Timeline, attribution: Attribution, work: ComputeWork
) -> tuple[ComputeClass, ...]:
    """Add to each class the rates that its kernels reached, if shapes are known."""
    total_ns = np.zeros(NO_CLASS)
    sums = {"flops": _no_sums(), "moved_bytes": _no_sums()}
    sources: dict[str, set[str]] = {"flops": set(), "moved_bytes": set()}
    for track, cut, table in zip(timeline.tracks, attribution.tracks, work.tracks, strict=True):
        if not len(cut.step_ns):
            continue
        inside = (table.kernel_class != NO_CLASS) & (track.ops.start >= cut.bounds[0])
        inside &= track.ops.start < cut.bounds[-1]
        time_ns = np.where(inside, track.ops.end - track.ops.start, 0).astype(np.float64)
        total_ns += np.bincount(table.kernel_class[inside], weights=time_ns[inside], minlength=NO_CLASS)
        of_operators = timeline.traces[track.trace].operator_work
        if of_operators is None:
            continue
        calls = _calls(table, of_operators, np.flatnonzero(inside), time_ns)
        peaks = {
            "flops": _flops_peaks(track.device_name, calls, of_operators, sources["flops"]),
            "moved_bytes": _memory_peaks(track.device_name, calls, sources["moved_bytes"]),
        }
        for name, peak in peaks.items():
            _add(sums[name], calls, getattr(of_operators, name)[calls.row], peak)
    return tuple(_reached(row, total_ns, sums, sources) for row in classes)


def _no_sums() -> _Sums:
    return _Sums(*(np.zeros(NO_CLASS) for _ in _Sums._fields))


def _calls(table: TrackKernels, work: OperatorWork, ops: NDArray[np.intp], time_ns: NDArray[np.float64]) -> _Launchers:
    """Return the operators that launched `ops` and whose work is known. `time_ns` has the times of all the track's ops.

    An operator may launch kernels of several classes, but counts for one class: a matrix class if its FLOPs are known,
    else the class with the most time.
    """
    slot = np.minimum(np.searchsorted(work.row, table.operator[ops]), len(work.row) - 1)
    known = work.row[slot] == table.operator[ops]
    ops, slot = ops[known], slot[known]
    # Pairs (operator, class). The last pair of each operator, sorted by (matrix class, time), is the one that counts.
    pairs, index = np.unique(slot * NO_CLASS + table.kernel_class[ops], return_inverse=True)
    time = np.bincount(index, weights=time_ns[ops], minlength=len(pairs))
    cores, simt = (np.bincount(index, table.matrix[ops] == value, len(pairs)) > 0 for value in (1, 0))
    matrix = np.isin(pairs % NO_CLASS, _MATRIX_CODES) & (work.flops[pairs // NO_CLASS] != NO_NUMBER)
    order = np.lexsort((time, matrix, pairs // NO_CLASS))
    last = order[np.append(np.diff(pairs[order] // NO_CLASS) != 0, True)[: len(order)]]
    return _Launchers(
        row=pairs[last] // NO_CLASS,
        code=pairs[last] % NO_CLASS,
        time_ns=time[last],
        units=np.where(cores, 1, np.where(simt, 0, UNKNOWN))[last],
    )


def _flops_peaks(device: str, calls: _Launchers, work: OperatorWork, sources: set[str]) -> NDArray[np.float64]:
    """Return each call's peak in FLOP/ns; NaN if it is unknown. Sources are added to `sources`.

    For half precisions, tensor cores are assumed unless kernels' names state fp32 units: no other peak is known.
    """
    peaks = np.full(len(calls.row), np.nan)
    precision = work.precision[calls.row]
    for index, name in enumerate(PRECISIONS):
        # fp32 operators that use tensor cores compute in TF32; if the units are unknown, so is the peak.
        for units, rate in {1: "tf32", 0: "fp32"}.items() if name == "fp32" else {1: name, UNKNOWN: name}.items():
            chosen = (precision == index) & (calls.units == units) & np.isin(calls.code, _MATRIX_CODES)
            if chosen.any() and (peak := peak_tflops(device, rate)) is not None:
                peaks[chosen] = peak[0] * 1e3
                sources.add(peak[1])
    return peaks


def _memory_peaks(device: str, calls: _Launchers, sources: set[str]) -> NDArray[np.float64]:
    """Return each call's peak in bytes/ns; NaN if it is unknown."""
    peak = peak_memory_gb_per_s(device)
    if peak is not None:
        sources.add(peak[1])
    return np.full(len(calls.row), np.nan if peak is None else peak[0])


def _add(sums: _Sums, calls: _Launchers, amount: NDArray[np.int64], peak: NDArray[np.float64]) -> None:
    """Add amounts (FLOPs or bytes), times, and times at `peak` (amounts per ns) of the calls to `sums`, in place."""
    known = (amount != NO_NUMBER) & (calls.time_ns > 0)
    has_peak = known & np.isfinite(peak)
    for column, chosen, values in (
        ("amount", known, amount),
        ("time_ns", known, calls.time_ns),
        ("peak_known_ns", has_peak, calls.time_ns),
        ("at_peak_ns", has_peak, amount / peak),
    ):
        total: NDArray[np.float64] = getattr(sums, column)
        total += np.bincount(calls.code[chosen], weights=values[chosen], minlength=NO_CLASS)


def _reached(
    row: ComputeClass, total_ns: NDArray[np.float64], sums: dict[str, _Sums], sources: dict[str, set[str]]
) -> ComputeClass:
    """Return a class with its rates. Matrix classes have the peak of matrix units, other classes the memory's peak.

    `other`, and a class without known work, is returned unchanged. `total_ns` is float64[classes], the time of all
    kernels. `sums` and `sources` (of peaks) have the keys `flops` and `moved_bytes`.
    """
    code = CLASS_CODES[row.kernel_class]  # type: ignore[index]  # rows are made from the classes
    flops, moved = sums["flops"], sums["moved_bytes"]
    main = "flops" if code in _MATRIX_CODES else "moved_bytes"
    known_ns = sums[main].time_ns[code]
    if row.kernel_class == "other" or not known_ns:
        return row
    peak_known_ns = sums[main].peak_known_ns[code]
    has_peak = peak_known_ns >= _PEAK_KNOWN * known_ns
    return msgspec.structs.replace(
        row,
        tflops_per_s=_ratio(flops.amount[code] / 1e3, flops.time_ns[code]) if code in _MATRIX_CODES else None,
        gb_per_s=_ratio(moved.amount[code], moved.time_ns[code]),
        known_percent=min(100.0, float(100 * known_ns / total_ns[code])),
        peak_percent=_ratio(100 * sums[main].at_peak_ns[code], peak_known_ns) if has_peak else None,
        peak_source="; ".join(sorted(sources[main])) if has_peak else "",
    )


def _ratio(part: float, whole: float) -> float | None:
    return min(float(part / whole), _MOST) if whole else None
