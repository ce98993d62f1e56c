"""Arrange many results in one table, and rank only results that differ only in the strategy.

Two results are ranked if they train the same model with the same samples per device, precision, layout, data and
options, on the same number of devices, on the same machine with the same software. The table states why other results
are not ranked together: throughputs with 32 and 64 samples per device are not comparable, and a faster GPU shows
nothing about a strategy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import msgspec

from gpudiag.model.benchmarks.scaling import Machine, PointRecord
from gpudiag.model.benchmarks.tables import Comparable, Environment, ResultRow, ResultsTable
from gpudiag.model.job import INDEPENDENT

#: Fields of a setting, and their names in messages.
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
#: Maximum number of listed reasons against ranking together. The headings of the groups show all differences.
_MOST_REFUSALS = 20
#: Maximum number of machines that a row is compared with, because 20,000 rows may all be of different machines.
_MOST_ENVIRONMENTS = 100


def results_table(results: Iterable[tuple[str, PointRecord]], left_out: Sequence[str] = ()) -> ResultsTable:
    """Arrange (source, point) pairs.

    Args:
        results: the pairs; unmeasured points are listed in their group without a rank.
        left_out: files that could not be read.
    """
    rows = [ResultRow(source=source, point=point) for source, point in results]
    groups: dict[tuple[object, ...], list[ResultRow]] = {}
    for row in rows:
        groups.setdefault(_key(row.point), []).append(row)
    arranged = [_comparable(members) for _, members in sorted(groups.items(), key=lambda item: str(item[0]))]
    return ResultsTable(
        groups=tuple(arranged),
        refusals=tuple(_refusals([members[0].point for members in groups.values()])),
        left_out=tuple(left_out),
    )


def _key(point: PointRecord) -> tuple[object, ...]:
    return (point.workload, *(_value(point, name) for name, _ in _SETTING))


def _value(point: PointRecord, name: str) -> object:
    value = getattr(point, name)
    return tuple(sorted(value.items())) if isinstance(value, dict) else value


def _comparable(rows: Sequence[ResultRow]) -> Comparable:
    """Rank the rows of one setting per environment (machine and software); say why environments are kept apart."""
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
        f"{_machine(a[0].point.machine)} beside {_machine(b[0].point.machine)}: "
        + "; ".join(a[0].point.machine.differences(b[0].point.machine))
        for a, b in itertools.islice(itertools.combinations(environments, 2), _MOST_REFUSALS)
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
    """Sort by descending throughput, and rank the rows that communicate; overlapping intervals share a rank.

    A single row gets no rank. Rows without a throughput come last.
    """
    measured = [row for row in rows if row.point.samples_per_s is not None]
    others = [row for row in rows if row.point.samples_per_s is None]
    measured.sort(key=lambda row: -(row.point.samples_per_s or 0.0))
    ranked = [row for row in measured if row.point.strategy != INDEPENDENT]
    numbers: dict[int, int] = {}
    for position, row in enumerate(ranked):
        before = ranked[position - 1] if position else None
        tie = before is not None and _overlap(before.point, row.point)
        numbers[id(row)] = numbers[id(before)] if tie and before is not None else position + 1
    numbered = [
        msgspec.structs.replace(row, rank=numbers.get(id(row)) if len(ranked) > 1 else None) for row in measured
    ]
    return [*numbered, *others]


def _overlap(faster: PointRecord, slower: PointRecord) -> bool:
    return faster.ci95 is not None and slower.ci95 is not None and faster.ci95[0] <= slower.ci95[1]


def _refusals(points: Sequence[PointRecord]) -> list[str]:
    """Return why groups of one workload are not ranked together; each pair of different settings is listed once."""
    # Points that differ only in their devices have equal reasons. Without this reduction, 20,000 points would make 200
    # million pairs.
    settings: dict[tuple[object, ...], PointRecord] = {}
    for point in points:
        settings.setdefault(
            (point.workload, *(_value(point, name) for name, _ in _SETTING if name != "devices")), point
        )
    of_workload: dict[str, list[PointRecord]] = {}
    for point in settings.values():
        of_workload.setdefault(point.workload, []).append(point)
    refusals: dict[str, None] = {}
    for a, b in itertools.chain.from_iterable(itertools.combinations(p, 2) for p in of_workload.values()):
        if len(refusals) >= _MOST_REFUSALS:
            break
        differing = [
            f"{word} {_word(a, name)} and {_word(b, name)}"
            for name, word in _SETTING
            if name != "devices" and _value(a, name) != _value(b, name)
        ]
        if differing:
            refusals[f"{a.workload}: {'; '.join(differing)}"] = None
    return list(refusals)[:_MOST_REFUSALS]


def _word(point: PointRecord, name: str) -> str:
    value = getattr(point, name)
    if isinstance(value, dict):
        return ", ".join(f"{key} {text}" for key, text in sorted(value.items())) or "none"
    return "unknown" if value is None else str(value)


def _machine(machine: Machine) -> str:
    """Return a short name of an environment."""
    names = [f"{machine.gpus.count(name)} x {name}" for name in dict.fromkeys(machine.gpus)]
    devices = ", ".join(names) or machine.cpu or "unknown machine"
    software = machine.software.get("torch") or machine.software.get("tensorflow")
    host = f" ({machine.host})" if machine.host else ""
    return f"{devices}{host}{f', {software}' if software else ''}"
