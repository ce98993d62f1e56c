"""One table of many results, which ranks only what differs in one thing.

Two results are ranked when they train the same model with the same samples per device, precision, layout, data and
options, on as many devices, on the same machine with the same software: then the strategy is what differs. Everything
else stands beside each other, with the reason why it is not ranked: a throughput with 32 samples per device is neither
better nor worse than one with 64, and a faster GPU says nothing about a strategy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import msgspec

from gpudiag.model.benchmarks.scaling import Machine, PointRecord
from gpudiag.model.benchmarks.tables import Comparable, Environment, ResultRow, ResultsTable
from gpudiag.model.job import INDEPENDENT

#: What makes up a setting, with the word for it.
_SETTING = (
    ("framework", "framework"),
    ("mode", "kind of scaling"),
    ("batch_per_device", "samples per device"),
    ("precision", "precision"),
    ("memory_format", "memory format"),
    ("data", "data"),
    ("options", "options"),
    ("threads", "CPU threads"),
    ("devices", "devices"),
)
#: Reasons between more groups than this are left to the headings.
_MOST_REFUSALS = 20
#: Machines that a row is compared with; in a file of 20,000 different ones each row would be compared with all.
_MOST_ENVIRONMENTS = 100


def results_table(results: Iterable[tuple[str, PointRecord]], left_out: Sequence[str] = ()) -> ResultsTable:
    """Arrange (source, point) pairs.

    Args:
        results: what was found; points that were not measured stand in their group without a rank.
        left_out: what could not be read.
    """
    rows = [ResultRow(source=source, point=point) for source, point in results]
    groups: dict[tuple[object, ...], list[ResultRow]] = {}
    for row in rows:
        groups.setdefault(_key(row.point), []).append(row)
    made = [_comparable(members) for _, members in sorted(groups.items(), key=lambda item: str(item[0]))]
    return ResultsTable(
        groups=tuple(made),
        refusals=tuple(_refusals([members[0].point for members in groups.values()])),
        left_out=tuple(left_out),
    )


def _key(point: PointRecord) -> tuple[object, ...]:
    return (point.workload, *(_value(point, name) for name, _ in _SETTING))


def _value(point: PointRecord, name: str) -> object:
    value = getattr(point, name)
    return tuple(sorted(value.items())) if isinstance(value, dict) else value


def _comparable(rows: Sequence[ResultRow]) -> Comparable:
    """Rows of one setting: those of one environment are ranked, and why the others are not is said."""
    environments: list[list[ResultRow]] = []
    for row in rows:
        home = next(
            (
                environment
                for environment in environments[:_MOST_ENVIRONMENTS]
                if not environment[0].point.machine.differences(row.point.machine)
            ),
            None,
        )
        if home is None:
            environments.append([row])
        else:
            home.append(row)
    refusals = [
        f"{_machine(one[0].point.machine)} beside {_machine(other[0].point.machine)}: "
        + "; ".join(one[0].point.machine.differences(other[0].point.machine))
        for one, other in itertools.islice(itertools.combinations(environments, 2), _MOST_REFUSALS)
    ]
    point = rows[0].point
    return Comparable(
        setting=point.id,
        devices=point.devices,
        environments=tuple(
            Environment(machine=_machine(members[0].point.machine), rows=tuple(_ranked(members)))
            for members in environments
        ),
        refusals=tuple(refusals),
    )


def _ranked(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """Fastest first, ranks given to those that exchange gradients; equal within both intervals is the same rank."""
    measured = [row for row in rows if row.point.samples_per_s is not None]
    others = [row for row in rows if row.point.samples_per_s is None]
    measured.sort(key=lambda row: -(row.point.samples_per_s or 0.0))
    ranked = [row for row in measured if row.point.strategy != INDEPENDENT]
    numbers: dict[int, int] = {}
    for place, row in enumerate(ranked):
        before = ranked[place - 1] if place else None
        tie = before is not None and _overlap(before.point, row.point)
        numbers[id(row)] = numbers[id(before)] if tie and before is not None else place + 1
    given = [msgspec.structs.replace(row, rank=numbers.get(id(row)) if len(ranked) > 1 else None) for row in measured]
    return [*given, *others]


def _overlap(one: PointRecord, other: PointRecord) -> bool:
    return one.ci95 is not None and other.ci95 is not None and one.ci95[0] <= other.ci95[1]


def _refusals(points: Sequence[PointRecord]) -> list[str]:
    """Why groups of one workload are not ranked together, each pair of values once."""
    # Points that differ in their devices alone have the same refusals: 20,000 points would be 200 million pairs.
    settings: dict[tuple[object, ...], PointRecord] = {}
    for point in points:
        settings.setdefault(
            (point.workload, *(_value(point, name) for name, _ in _SETTING if name != "devices")), point
        )
    of_workload: dict[str, list[PointRecord]] = {}
    for point in settings.values():
        of_workload.setdefault(point.workload, []).append(point)
    found: dict[str, None] = {}
    for one, other in itertools.chain.from_iterable(itertools.combinations(p, 2) for p in of_workload.values()):
        if len(found) >= _MOST_REFUSALS:
            break
        differing = [
            f"{word} {_word(one, name)} and {_word(other, name)}"
            for name, word in _SETTING
            if name != "devices" and _value(one, name) != _value(other, name)
        ]
        if differing:
            found[f"{one.workload}: {'; '.join(differing)}"] = None
    return list(found)[:_MOST_REFUSALS]


def _word(point: PointRecord, name: str) -> str:
    value = getattr(point, name)
    if isinstance(value, dict):
        return ", ".join(f"{key} {text}" for key, text in sorted(value.items())) or "none"
    return "unknown" if value is None else str(value)


def _machine(machine: Machine) -> str:
    """A short name for an environment."""
    names = [f"{machine.gpus.count(name)} x {name}" for name in dict.fromkeys(machine.gpus)]
    what = ", ".join(names) or machine.cpu or "unknown machine"
    software = machine.software.get("torch") or machine.software.get("tensorflow")
    where = f" ({machine.host})" if machine.host else ""
    return f"{what}{where}{f', {software}' if software else ''}"
