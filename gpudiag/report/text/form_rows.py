"""Arrange results in the tables that earlier benchmarks published."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from gpudiag.model.benchmarks.scaling import PointRecord, Scaling
from gpudiag.model.benchmarks.tables import Column, FormTable, FormTables, Kind, Value
from gpudiag.model.job import INDEPENDENT
from gpudiag.report.scaling import words

#: Numbers of iterations in the published tables of 3D U-Net: the measured number, and the number to which the time was
#: extrapolated.
_TIMED, _ITERATIONS = 1001, 100_000
#: Voxels of the volume whose prediction was timed, and of the data set Platynereis, whose time was extrapolated.
_VOLUME, _PLATYNEREIS = 1.9e9, 8.1e12
#: Strategy with which the form `relative` compares all strategies.
_REFERENCE = "cpu-reduce"
_VALID = " with a valid baseline (see the remarks of `gpudiag scale --from`)"
_PRECISIONS = ("fp32", "tf32", "fp16", "bf16")

FormRow = tuple[Value, ...]
Rows = Iterator[FormRow]


class FormSource(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a scaling benchmark and their path `source`. With `several` sources, names begin with the path."""

    source: str
    scaling: Scaling
    several: bool

    @property
    def points(self) -> list[PointRecord]:
        """The measured points that use the first devices of the machine."""
        return [
            point
            for point in self.scaling.points
            if point.samples_per_s and point.step_ms and point.device_indices == tuple(range(point.devices))
        ]

    def groups(self) -> list[tuple[str, list[PointRecord]]]:
        """Return (settings, points) of each group of points that have the same settings."""
        return [(self.labelled(setting), points) for setting, points in words.groups(self.points)]

    def system(self, point: PointRecord) -> str:
        """Return workload and number of devices."""
        return self.labelled(f"{point.workload} (x{point.devices})")

    def labelled(self, name: str) -> str:
        """Return the name; if there are several paths, with the path before it."""
        return f"{self.source}: {name}" if self.several else name

    def main_strategy(self, workload: str) -> str:
        """Return the strategy with the most points of a workload; `independent` only if there is no other strategy."""
        names = [
            point.strategy for point in self.points if point.workload == workload and point.strategy != INDEPENDENT
        ]
        return max(dict.fromkeys(names), key=names.count) if names else INDEPENDENT

    def with_speedup(self) -> list[PointRecord]:
        """Return the points of each workload's main strategy that have a speedup."""
        points = [point for point in self.points if point.speedup is not None]
        return [point for point in points if point.strategy == self.main_strategy(point.workload)]


class FormLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The layout of a form, which is a table in the format of an earlier benchmark.

    Attributes:
        columns: `heading` or `heading:kind` of each column, or a function that returns them.
        rows: returns the rows.
        missing: the measurements that the form needs, in words.
        note: a note below the table.
    """

    columns: tuple[str, ...] | Callable[[Sequence[FormSource]], tuple[str, ...]]
    rows: Callable[[Sequence[FormSource]], Rows]
    missing: str
    note: str = ""

    def table(self, form: str, sources: Sequence[FormSource]) -> FormTable:
        """Return the table of a form, filled with the results of the sources."""
        columns = self.columns if isinstance(self.columns, tuple) else self.columns(sources)
        rows = tuple(self.rows(sources))
        return FormTable(
            form=form, columns=tuple(map(_column, columns)), rows=rows, note=self.note, missing=self.missing
        )


def form_tables(results: Sequence[tuple[str, Scaling]], forms: Iterable[str], left_out: Sequence[str]) -> FormTables:
    """Arrange results, each with its path, in the named forms; `left_out` are paths that could not be read."""
    sources = [FormSource(source=source, scaling=scaling, several=len(results) > 1) for source, scaling in results]
    return FormTables(
        machines={source: words.machine(scaling.machine) for source, scaling in results},
        tables=tuple(_LAYOUTS[form].table(form, sources) for form in forms),
        left_out=tuple(left_out),
    )


def _column(text: str) -> Column:
    heading, separator, kind = text.rpartition(":")
    return Column(heading=heading, kind=msgspec.convert(kind, Kind)) if separator else Column(heading=text)


def _training(sources: Sequence[FormSource]) -> Rows:
    """Yield the times of 1001 and 100,000 iterations for each training point of a workload's main strategy."""
    for source in sources:
        trained = [point for point in source.points if point.mvox_per_s is None]
        for point in sorted(trained, key=lambda point: (point.workload, words.setting(point), point.devices)):
            if point.strategy != source.main_strategy(point.workload):
                continue
            rate, batch = point.samples_per_s or 0.0, point.global_batch
            # Number of samples of `_ITERATIONS` iterations on one device, for the last column.
            one_device_samples = _ITERATIONS * (point.batch_per_device if point.mode == "weak" else batch)
            seconds = batch / rate
            system = (source.system(point), point.strategy, point.precision, batch)
            days = (_ITERATIONS * seconds / 86400, one_device_samples / rate / 86400)
            yield (*system, _TIMED * seconds, 60 / seconds, *days)


def _prediction(sources: Sequence[FormSource]) -> Rows:
    """Yield the times for predicting both volumes, a row per point that predicts."""
    for source in sources:
        for point in source.points:
            if rate := point.mvox_per_s:
                hours = _PLATYNEREIS / rate / 3600e6
                yield source.system(point), point.precision, _VOLUME / rate / 1e6, rate, hours


def _strategy_names(sources: Sequence[FormSource]) -> list[str]:
    return list(dict.fromkeys(point.strategy for source in sources for point in source.points))


def _strategy_columns(sources: Sequence[FormSource]) -> tuple[str, ...]:
    return "setting", "#GPU:count", *(f"{name}:rate" for name in _strategy_names(sources))


def _strategies(sources: Sequence[FormSource]) -> Rows:
    """Yield the rate of each strategy, a row per setting and number of devices."""
    names = _strategy_names(sources)
    for source in sources:
        for setting, points in source.groups():
            for devices in sorted({point.devices for point in points}):
                rates = {point.strategy: point.samples_per_s for point in points if point.devices == devices}
                yield setting, devices, *map(rates.get, names)


def _speedup(sources: Sequence[FormSource]) -> Rows:
    """Yield speedup and efficiency of each point."""
    for source in sources:
        for setting, points in source.groups():
            for point in points:
                gain = (point.speedup, _percent(point.efficiency))
                yield setting, point.devices, point.strategy, point.samples_per_s, *gain


def _batch_sizes(sources: Sequence[FormSource]) -> list[int]:
    points = (point for source in sources for point in source.points if point.speedup is not None)
    return sorted({point.batch_per_device for point in points}, reverse=True)


def _batch_columns(sources: Sequence[FormSource]) -> tuple[str, ...]:
    pairs = ((f"{size}: speedup:ratio", f"{size}: efficiency:percent") for size in _batch_sizes(sources))
    return "model", "strategy", "precision", "gpu count:count", *(column for pair in pairs for column in pair)


def _batches(sources: Sequence[FormSource]) -> Rows:
    """Yield speedup and efficiency by batch size, a row per workload, strategy, precision and number of devices."""
    by_system: dict[FormRow, dict[int, PointRecord]] = {}
    for source in sources:
        for point in source.points:
            if point.speedup is not None:
                system = (source.labelled(point.workload), point.strategy, point.precision, point.devices)
                by_system.setdefault(system, {})[point.batch_per_device] = point
    sizes = _batch_sizes(sources)
    for row, by_size in by_system.items():
        pairs = ((p.speedup, _percent(p.efficiency)) if p else (None, None) for p in map(by_size.get, sizes))
        yield (*row, *(value for pair in pairs for value in pair))


def _models(sources: Sequence[FormSource]) -> Rows:
    """Yield speedup and efficiency of each workload on the largest number of devices."""
    for source in sources:
        points = source.with_speedup()
        most = max((point.devices for point in points), default=0)
        for point in points:
            if point.devices == most > 1:
                model = (source.system(point), point.strategy, point.precision, point.parameters)
                yield (*model, point.speedup, _percent(point.efficiency))


def _medians(sources: Sequence[FormSource]) -> Rows:
    """Yield the median speedup over workloads for each number of devices."""
    for source in sources:
        points = [point for point in source.with_speedup() if point.devices > 1]
        for devices in sorted({point.devices for point in points}):
            speedups = [point.speedup or 0.0 for point in points if point.devices == devices]
            median = statistics.median(speedups)
            yield source.source if source.several else "all", devices, len(speedups), median, 100 * median / devices


def _ladder(sources: Sequence[FormSource]) -> Rows:
    """Yield rates on the largest number of devices, by precision, batch size, layout and compilation.

    `independent` is compared only if there is no other strategy. A single point has nothing to be compared with.
    """
    for source in sources:
        most = max((point.devices for point in source.points), default=0)
        points = [point for point in source.points if point.devices == most]
        by_key: dict[tuple[str, str], list[PointRecord]] = {}
        for point in [point for point in points if point.strategy != INDEPENDENT] or points:
            by_key.setdefault((point.workload, point.strategy), []).append(point)
        for rungs in by_key.values():
            if len(rungs) > 1:
                yield from _rungs(source, sorted(rungs, key=_rung))


def _rungs(source: FormSource, points: list[PointRecord]) -> Rows:
    """Yield the rates of the points, relative to the first point."""
    base = points[0].samples_per_s or 1.0
    for point in points:
        compiled = "yes" if _compiled(point) else ""
        setting = (point.precision, point.memory_format, point.batch_per_device, point.data, compiled)
        rate = point.samples_per_s or 0.0
        yield (source.system(point), point.strategy, *setting, rate, rate / base)


def _rung(point: PointRecord) -> tuple[int, ...]:
    """Return the key that sorts points: precision, batch size, layout, compilation."""
    known = point.precision in _PRECISIONS
    precision = _PRECISIONS.index(point.precision) if known else len(_PRECISIONS)
    return (precision, point.batch_per_device, point.memory_format == "nhwc", _compiled(point))


def _compiled(point: PointRecord) -> bool:
    return point.options.get("compile", "").lower() == "true"


def _devices(sources: Sequence[FormSource]) -> Rows:
    """Yield the rate of each device alone, relative to the first device."""
    for source in sources:
        for gpu in source.scaling.alone:
            share = 100 * gpu.samples_per_s / (source.scaling.alone[0].samples_per_s or 1.0)
            mark = "differs from the others" if gpu.odd else ""
            yield source.labelled(str(gpu.index)), gpu.name, gpu.samples_per_s, share, mark


def _pair_strategies(sources: Sequence[FormSource]) -> list[str]:
    return list(dict.fromkeys(pair.strategy for source in sources for pair in source.scaling.pairs))


def _pair_columns(sources: Sequence[FormSource]) -> tuple[str, ...]:
    pairs = ((f"{name}:rate", f"{name}, of its two alone:percent") for name in _pair_strategies(sources))
    return "link", "GPUs", *(column for pair in pairs for column in pair)


def _pairs(sources: Sequence[FormSource]) -> Rows:
    """Yield the rate of each strategy on a pair of devices, a row per pair."""
    by_pair: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
    for source in sources:
        for pair in source.scaling.pairs:
            rates = by_pair.setdefault((source.labelled(pair.link), ",".join(map(str, pair.indices))), {})
            rates[pair.strategy] = (pair.samples_per_s, 100 * pair.efficiency)
    for key, rates in sorted(by_pair.items()):
        yield (*key, *(value for name in _pair_strategies(sources) for value in rates.get(name, (None, None))))


def _relative(sources: Sequence[FormSource]) -> Rows:
    """Yield the rates of strategies relative to `_REFERENCE`, on the largest number of devices."""
    for source in sources:
        for setting, points in source.groups():
            if not words.relative_performance(points):
                continue  # a baseline is not valid, so that relative rates are not valid either
            most = max(point.devices for point in points)
            rates = {point.strategy: point.samples_per_s or 0.0 for point in points if point.devices == most}
            reference = rates.get(_REFERENCE)
            if reference:
                yield from ((setting, most, name, rate, 100 * rate / reference) for name, rate in rates.items())


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


_LAYOUTS = {
    "training": FormLayout(
        columns=(
            *("system", "strategy", "precision", "samples per iteration:count", f"{_TIMED} iterations [s]:seconds"),
            *("iterations per minute:rate", "100k iterations [d]:days", "samples of 100k on one device [d]:days"),
        ),
        rows=_training,
        note="An iteration on N devices processes N times the samples of one on a single device, so times per "
        "iteration are not comparable; the last column is the time for the samples of 100k one-device iterations.",
        missing="training (`gpudiag scale unet3d`)",
    ),
    "prediction": FormLayout(
        columns=("system", "precision", "1.9 Gvox [s]:seconds", "Mvox/s:rate", "8.1 Tvox [h]:hours"),
        rows=_prediction,
        note="Each voxel counts once, when it is written, even if several blocks contain it.",
        missing="prediction of a volume (`gpudiag scale unet3d-predict`)",
    ),
    "strategies": FormLayout(columns=_strategy_columns, rows=_strategies, missing="any point"),
    "speedup": FormLayout(
        columns=("setting", "GPUs:count", "strategy", "samples/s:rate", "speedup:ratio", "efficiency:percent"),
        rows=_speedup,
        note="Relative to one device with the same strategy and setting; empty if that baseline is not valid.",
        missing="any point",
    ),
    "batches": FormLayout(columns=_batch_columns, rows=_batches, missing=f"a speedup (`--batch-size 32,512`){_VALID}"),
    "models": FormLayout(
        columns=("model", "strategy", "precision", "number of params:count", "speedup:ratio", "efficiency:percent"),
        rows=_models,
        missing=f"a speedup on several devices{_VALID}",
    ),
    "medians": FormLayout(
        columns=("results", "GPUs:count", "models:count", "median speedup:ratio", "median efficiency:percent"),
        rows=_medians,
        missing=f"a speedup on several devices{_VALID}",
    ),
    "ladder": FormLayout(
        columns=(
            *("system", "strategy", "precision", "layout", "batch per device:count", "data", "compiled"),
            *("samples/s:rate", "of the first:ratio"),
        ),
        rows=_ladder,
        note="Unlike the other tables, this one compares points that differ in more than the strategy.",
        missing="several precisions, layouts, batches or compilers "
        "(`--precision fp32,fp16 --batch-size 64,128 --compile-both`)",
    ),
    "devices": FormLayout(
        columns=("GPU", "name", "total samples/s:rate", "%:percent", ""),
        rows=_devices,
        missing="several GPUs, each alone",
    ),
    "pairs": FormLayout(columns=_pair_columns, rows=_pairs, missing=f"pairs of devices (`--subsets pairs`){_VALID}"),
    "relative": FormLayout(
        columns=("setting", "GPUs:count", "strategy", "samples/s:rate", f"of {_REFERENCE}:percent"),
        rows=_relative,
        missing=f"{_REFERENCE} on several devices{_VALID}",
    ),
}
