"""Results arranged in the forms in which earlier benchmarks gave theirs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

import msgspec

from gpudiag.model.benchmarks.scaling import PointRecord, Scaling
from gpudiag.model.benchmarks.tables import Column, FormTable, FormTables, Kind, Value
from gpudiag.model.job import INDEPENDENT
from gpudiag.report.scaling import words

#: Iterations that the 3D U-Net's systems were timed for, and those to which they were extrapolated.
_TIMED, _ITERATIONS = 1001, 100_000
#: Voxels of the volume that they predicted, and of Platynereis.
_VOLUME, _PLATYNEREIS = 1.9e9, 8.1e12
_BESIDE = "cpu-reduce"
#: Where it was measured, and nothing follows from it.
_SURE = ", or no baseline that decides anything: see what `gpudiag scale --from` remarks"

Rows = list[tuple[Value, ...]]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What one path has: its benchmark, the points that were measured, and those on the first devices of them."""

    source: str
    scaling: Scaling
    several: bool
    """Other paths are shown beside it."""

    @property
    def measured(self) -> list[PointRecord]:
        """With a throughput."""
        return [point for point in self.scaling.points if point.samples_per_s and point.step_ms]

    @property
    def whole(self) -> list[PointRecord]:
        """On the first devices, as many as there are."""
        return [point for point in self.measured if point.device_indices == tuple(range(point.devices))]

    def groups(self) -> list[tuple[str, list[PointRecord]]]:
        """Points that may be compared, with what they share."""
        found = words.groups(self.whole)
        return [(f"{self.source}: {what}", members) for what, members in found] if self.several else found

    def system(self, point: PointRecord) -> str:
        """A workload and how many devices."""
        name = f"{point.workload} (x{point.devices})"
        return f"{self.source}: {name}" if self.several else name


def form_tables(results: Sequence[tuple[str, Scaling]], forms: Iterable[str], left_out: Sequence[str]) -> FormTables:
    """Arrange results.

    Args:
        results: each with the path that it comes from.
        forms: names among `FORMS`.
        left_out: what could not be read.
    """
    known = [Result(source=source, scaling=scaling, several=len(results) > 1) for source, scaling in results]
    return FormTables(
        machines={source: words.machine(scaling.machine) for source, scaling in results},
        tables=tuple(_MAKE[form](known) for form in forms),
        left_out=tuple(left_out),
    )


def _columns(*columns: tuple[str, Kind] | str) -> tuple[Column, ...]:
    return tuple(Column(heading=c) if isinstance(c, str) else Column(heading=c[0], kind=c[1]) for c in columns)


def _training(results: Sequence[Result]) -> FormTable:
    rows: Rows = []
    for result in results:
        trained = [point for point in result.whole if point.mvox_per_s is None]
        for point in sorted(trained, key=lambda one: (one.workload, words.setting(one), one.devices)):
            if point.strategy != _exchanging(result.whole, point.workload):
                continue
            rate, batch = point.samples_per_s or 0.0, point.global_batch
            like_one = _ITERATIONS * (point.batch_per_device if point.mode == "weak" else batch)
            seconds = batch / rate
            of = (result.system(point), point.strategy, point.precision, batch)
            days = (_ITERATIONS * seconds / 86400, like_one / rate / 86400)
            rows.append((*of, _TIMED * seconds, 60 / seconds, *days))
    return FormTable(
        form="training",
        columns=_columns(
            *("system", "strategy", "precision", ("samples per iteration", "count")),
            *((f"{_TIMED} iterations [s]", "seconds"), ("iterations per minute", "rate")),
            *(("100k iterations [d]", "days"), ("samples of 100k on one device [d]", "days")),
        ),
        rows=tuple(rows),
        note="An iteration on N devices is N times the samples of one on a single device, so that the time to a number "
        "of iterations compares nothing; the last column is the time to the samples of 100k one-device iterations.",
        missing="training (`gpudiag scale unet3d`)",
    )


def _prediction(results: Sequence[Result]) -> FormTable:
    rows: Rows = [
        (result.system(point), point.precision, _VOLUME / rate / 1e6, rate, _PLATYNEREIS / rate / 3600e6)
        for result in results
        for point in result.whole
        if (rate := point.mvox_per_s)
    ]
    return FormTable(
        form="prediction",
        columns=_columns(
            *("system", "precision", ("1.9 Gvox [s]", "seconds"), ("Mvox/s", "rate"), ("8.1 Tvox [h]", "hours"))
        ),
        rows=tuple(rows),
        note="Each voxel counts once, when it is written, however many blocks it is seen in.",
        missing="prediction of a volume (`gpudiag scale unet3d-predict`)",
    )


def _strategies(results: Sequence[Result]) -> FormTable:
    names = list(dict.fromkeys(point.strategy for result in results for point in result.whole))
    rows: Rows = []
    for result in results:
        for what, members in result.groups():
            for devices in sorted({point.devices for point in members}):
                rates = {point.strategy: point.samples_per_s for point in members if point.devices == devices}
                rows.append((what, devices, *(rates.get(name) for name in names)))
    columns = _columns("setting", ("#GPU", "count"), *((name, "rate") for name in names))
    return FormTable(form="strategies", columns=columns, rows=tuple(rows), missing="any point")


def _speedup(results: Sequence[Result]) -> FormTable:
    rows: Rows = [
        (what, point.devices, point.strategy, point.samples_per_s, point.speedup, _percent(point.efficiency))
        for result in results
        for what, members in result.groups()
        for point in members
    ]
    return FormTable(
        form="speedup",
        columns=_columns(
            *("setting", ("GPUs", "count"), "strategy", ("samples/s", "rate")),
            *(("speedup", "ratio"), ("efficiency", "percent")),
        ),
        rows=tuple(rows),
        note="Against one device of the same strategy and setting; none where that baseline decides nothing.",
        missing="any point",
    )


def _batches(results: Sequence[Result]) -> FormTable:
    points = [(result, point) for result in results for point in result.whole if point.speedup is not None]
    sizes = sorted({point.batch_per_device for _, point in points}, reverse=True)
    found: dict[tuple[Value, ...], dict[int, PointRecord]] = {}
    for result, point in points:
        system = f"{result.source}: {point.workload}" if result.several else point.workload
        found.setdefault((system, point.strategy, point.precision, point.devices), {})[point.batch_per_device] = point
    rows: Rows = []
    for key, by_size in found.items():
        known = [by_size.get(size) for size in sizes]
        cells = [(None, None) if one is None else (one.speedup, _percent(one.efficiency)) for one in known]
        rows.append((*key, *(value for pair in cells for value in pair)))
    across: list[tuple[str, Kind]] = []
    for size in sizes:
        across += [(f"{size}: speedup", "ratio"), (f"{size}: efficiency", "percent")]
    columns = _columns("model", "strategy", "precision", ("gpu count", "count"), *across)
    return FormTable(
        form="batches", columns=columns, rows=tuple(rows), missing=f"a speedup (`--batch-size 32,512`){_SURE}"
    )


def _on_most(result: Result) -> list[PointRecord]:
    """Of each workload the strategy that was measured most, where there is a speedup."""
    return [
        point
        for point in result.whole
        if point.speedup is not None and point.strategy == _exchanging(result.whole, point.workload)
    ]


def _models(results: Sequence[Result]) -> FormTable:
    rows: Rows = []
    for result in results:
        points = _on_most(result)
        most = max((point.devices for point in points), default=0)
        rows += [
            (result.system(one), one.strategy, one.precision, one.parameters, one.speedup, _percent(one.efficiency))
            for one in points
            if one.devices == most > 1
        ]
    return FormTable(
        form="models",
        columns=_columns(
            *("model", "strategy", "precision", ("number of params", "count")),
            *(("speedup", "ratio"), ("efficiency", "percent")),
        ),
        rows=tuple(rows),
        missing=f"a speedup on several devices{_SURE}",
    )


def _medians(results: Sequence[Result]) -> FormTable:
    rows: Rows = []
    for result in results:
        points = [point for point in _on_most(result) if point.devices > 1]
        for devices in sorted({point.devices for point in points}):
            speedups = [point.speedup or 0.0 for point in points if point.devices == devices]
            middle = statistics.median(speedups)
            system = result.source if result.several else "all"
            rows.append((system, devices, len(speedups), middle, 100 * middle / devices))
    return FormTable(
        form="medians",
        columns=_columns(
            *("results", ("GPUs", "count"), ("models", "count"), ("median speedup", "ratio")),
            *(("median efficiency", "percent"),),
        ),
        rows=tuple(rows),
        missing=f"a speedup on several devices{_SURE}",
    )


def _ladder(results: Sequence[Result]) -> FormTable:
    rows: Rows = []
    for result in results:
        most = max((point.devices for point in result.whole), default=0)
        there = [point for point in result.whole if point.devices == most]
        if any(point.strategy != INDEPENDENT for point in there):
            there = [point for point in there if point.strategy != INDEPENDENT]
        for workload, strategy in dict.fromkeys((point.workload, point.strategy) for point in there):
            rungs = [point for point in there if (point.workload, point.strategy) == (workload, strategy)]
            rungs.sort(key=_rung)
            base = rungs[0].samples_per_s or 1.0
            rows += [
                (
                    result.system(point),
                    strategy,
                    *_of_rung(point),
                    point.samples_per_s,
                    (point.samples_per_s or 0) / base,
                )
                for point in rungs
                if len(rungs) > 1
            ]
    return FormTable(
        form="ladder",
        columns=_columns(
            *("system", "strategy", "precision", "layout", ("batch per device", "count"), "data", "compiled"),
            *(("samples/s", "rate"), ("of the first", "ratio")),
        ),
        rows=tuple(rows),
        note="Unlike the others this form puts side by side what differs in more than the strategy: that is its point.",
        missing="several precisions, layouts, batches or compilers "
        "(`--precision fp32,fp16 --batch-size 64,128 --compile-both`)",
    )


_PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


def _rung(point: PointRecord) -> tuple[int, ...]:
    known = point.precision in _PRECISIONS
    precision = _PRECISIONS.index(point.precision) if known else len(_PRECISIONS)
    return (precision, point.batch_per_device, point.memory_format == "nhwc", _compiled(point))


def _of_rung(point: PointRecord) -> tuple[Value, ...]:
    compiled = "yes" if _compiled(point) else ""
    return (point.precision, point.memory_format, point.batch_per_device, point.data, compiled)


def _compiled(point: PointRecord) -> bool:
    return point.options.get("compile", "").lower() == "true"


def _devices(results: Sequence[Result]) -> FormTable:
    rows: Rows = []
    for result in results:
        for gpu in result.scaling.alone:
            name = f"{result.source}: {gpu.index}" if result.several else str(gpu.index)
            share = 100 * gpu.samples_per_s / (result.scaling.alone[0].samples_per_s or 1.0)
            rows.append((name, gpu.name, gpu.samples_per_s, share, "unlike the rest" if gpu.odd else ""))
    columns = _columns("GPU", "name", ("total samples/s", "rate"), ("%", "percent"), "")
    return FormTable(form="devices", columns=columns, rows=tuple(rows), missing="several GPUs, each alone")


def _pairs(results: Sequence[Result]) -> FormTable:
    names = list(dict.fromkeys(pair.strategy for result in results for pair in result.scaling.pairs))
    found: dict[tuple[Value, ...], dict[str, float]] = {}
    for result in results:
        for pair in result.scaling.pairs:
            which = ",".join(map(str, pair.indices))
            key = (f"{result.source}: {pair.link}" if result.several else pair.link, which)
            found.setdefault(key, {})[pair.strategy] = pair.samples_per_s
            found[key][f"{pair.strategy}, of its two alone"] = 100 * pair.efficiency
    across: list[tuple[str, Kind]] = []
    for name in names:
        across += [(name, "rate"), (f"{name}, of its two alone", "percent")]
    rows = tuple((*key, *(rates.get(name) for name, _ in across)) for key, rates in sorted(found.items()))
    columns = _columns("link", "GPUs", *across)
    return FormTable(form="pairs", columns=columns, rows=rows, missing=f"pairs of devices (`--subsets pairs`){_SURE}")


def _relative(results: Sequence[Result]) -> FormTable:
    rows: Rows = []
    for result in results:
        for what, members in result.groups():
            if not words.relative_performance(members):
                continue  # a baseline decides nothing, and so does what was measured beside it
            most = max(point.devices for point in members)
            rates = {point.strategy: point.samples_per_s or 0.0 for point in members if point.devices == most}
            beside = rates.get(_BESIDE)
            rows += [(what, most, name, rate, 100 * rate / beside) for name, rate in rates.items() if beside]
    return FormTable(
        form="relative",
        columns=_columns(
            *("setting", ("GPUs", "count"), "strategy", ("samples/s", "rate"), (f"of {_BESIDE}", "percent"))
        ),
        rows=tuple(rows),
        missing=f"{_BESIDE} on several devices{_SURE}",
    )


def _exchanging(points: Iterable[PointRecord], workload: str) -> str:
    """The strategy in which most was measured of a workload, of those that exchange gradients."""
    names = [point.strategy for point in points if point.workload == workload and point.strategy != INDEPENDENT]
    return max(dict.fromkeys(names), key=names.count) if names else INDEPENDENT


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


_MAKE: dict[str, Callable[[Sequence[Result]], FormTable]] = {
    "training": _training,
    "prediction": _prediction,
    "strategies": _strategies,
    "speedup": _speedup,
    "batches": _batches,
    "models": _models,
    "medians": _medians,
    "ladder": _ladder,
    "devices": _devices,
    "pairs": _pairs,
    "relative": _relative,
}
