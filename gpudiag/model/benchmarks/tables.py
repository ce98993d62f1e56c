"""Define tables of results of many runs, ranked if comparable (`gpudiag/table/1`), and tables in fixed forms.

A form is the layout in which an earlier benchmark printed its results.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudiag.model.benchmarks.scaling import PointRecord

TABLE_SCHEMA = "gpudiag/table/1"
FORM_TABLES_SCHEMA = "gpudiag/form-tables/1"


class ResultRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run's result.

    Attributes:
        source: the path that the user gave.
        rank: 1 for the highest throughput among comparable rows, equal if intervals overlap. None if there is no other
            row, if the devices train separate models (`independent`), or if the run has no throughput.
        verdict: the first conclusion of the run's saved analysis, in a few words; "" if there is none.
    """

    source: str
    point: PointRecord
    rank: int | None = None
    verdict: str = ""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one machine with one set of software versions, which may be ranked."""

    machine: str
    rows: tuple[ResultRow, ...]


class Comparable(msgspec.Struct, frozen=True, kw_only=True):
    """Rows with equal training settings. `refusals` has the reasons why environments are not ranked together."""

    setting: str
    devices: int
    environments: tuple[Environment, ...]
    refusals: tuple[str, ...] = ()


class ResultsTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of all given results.

    `refusals` has the reasons why groups of one workload are not ranked together; `left_out` lists unreadable inputs.
    """

    schema: str = TABLE_SCHEMA
    groups: tuple[Comparable, ...]
    refusals: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


#: Form → title.
FORMS = {
    "training": "Training: seconds for 1001 iterations, iterations per minute, days to 100,000",
    "prediction": "Prediction: voxels that were written per second, and hours for 8.1 teravoxels",
    "strategies": "Samples per second: devices down, strategies across",
    "speedup": "Samples per second, speedup and efficiency of each strategy",
    "batches": "Speedup and efficiency: devices down, samples per device across",
    "models": "Models: parameters, speedup and efficiency on the most devices",
    "medians": "Median speedup and efficiency over the models",
    "ladder": "Precision, layout, batch and compiler, beside the first",
    "devices": "Each device alone, beside the first",
    "pairs": "Pairs of devices by the link between them, strategies across",
    "relative": "Strategies on the most devices, beside reducing on the CPU",
}

#: Content and unit of a column.
Kind = Literal["word", "count", "rate", "seconds", "days", "hours", "ratio", "percent"]
Value = str | int | float | None


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a form."""

    heading: str
    kind: Kind = "word"


class FormTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table in one form. None in a row means unknown. If `rows` is empty, `missing` names missing measurements."""

    form: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...] = ()
    note: str = ""
    missing: str = ""

    @property
    def title(self) -> str:
        """Return the title of the form."""
        return FORMS[self.form]


class FormTables(msgspec.Struct, frozen=True, kw_only=True):
    """All requested forms. `machines` maps sources to their machines; `left_out` lists unreadable inputs."""

    schema: str = FORM_TABLES_SCHEMA
    machines: dict[str, str]
    tables: tuple[FormTable, ...]
    left_out: tuple[str, ...] = ()
