"""FormTable: results in the form in which an earlier benchmark printed its own (`gpudiag/form-tables/1`)."""

from __future__ import annotations

from typing import Literal

import msgspec

FORM_TABLES_SCHEMA = "gpudiag/form-tables/1"

#: The forms by name, and what each shows.
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

#: What a column holds, in which unit.
Kind = Literal["word", "count", "rate", "seconds", "days", "hours", "ratio", "percent"]
Value = str | int | float | None


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A column: what people read above it, and what it holds."""

    heading: str
    kind: Kind = "word"


class FormTable(msgspec.Struct, frozen=True, kw_only=True):
    """One form. Where it has no rows, `missing` says what would have to be measured; None in a row is unknown."""

    form: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...] = ()
    note: str = ""
    missing: str = ""

    @property
    def title(self) -> str:
        """What it shows."""
        return FORMS[self.form]


class FormTables(msgspec.Struct, frozen=True, kw_only=True):
    """All forms that were asked for; `machines` are those of the results, in words, by source."""

    schema: str = FORM_TABLES_SCHEMA
    machines: dict[str, str]
    tables: tuple[FormTable, ...]
    left_out: tuple[str, ...] = ()
    """What could not be read, one line each."""
