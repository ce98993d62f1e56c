"""Results of many runs and machines in one table; only what is comparable is ranked (`gpudiag/table/1`)."""

from __future__ import annotations

import msgspec

from gpudiag.model.benchmarks.scaling import PointRecord

TABLE_SCHEMA = "gpudiag/table/1"


class ResultRow(msgspec.Struct, frozen=True, kw_only=True):
    """One result.

    Attributes:
        source: the path that was given.
        point: what was measured.
        rank: 1 for the highest throughput among the rows that may be ranked with this one; None where it is the only
            one, trains no model in common (`independent`), or has no figure.
        verdict: what the analysis kept with a run leads with, in a few words; "" where none was kept.
    """

    source: str
    point: PointRecord
    rank: int | None = None
    verdict: str = ""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one machine with one set of software: they may be ranked."""

    machine: str
    rows: tuple[ResultRow, ...]


class Comparable(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that agree in all that is trained; `refusals` say why their environments are not ranked together."""

    setting: str
    devices: int
    environments: tuple[Environment, ...]
    refusals: tuple[str, ...] = ()


class ResultsTable(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was given. `refusals` say why groups of one workload are not ranked together."""

    schema: str = TABLE_SCHEMA
    groups: tuple[Comparable, ...]
    refusals: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """What could not be read, one line each."""
