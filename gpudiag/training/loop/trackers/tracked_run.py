"""Define what trackers log of an analysed run, and the names of the trackers."""

from __future__ import annotations

from typing import Literal, get_args

from gpudiag.model.structs import msgspec

TrackerName = Literal["wandb", "mlflow", "tensorboard"]
TRACKERS: tuple[TrackerName, ...] = get_args(TrackerName)

TRACKED_SCHEMA = "gpudiag/tracked/1"
TRACKED_FILE = "tracked.json"
#: Names in trackers: the table of findings, and the artifact with the report.
FINDINGS = "gpudiag/findings"
REPORT = "gpudiag-report"


class TrackedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The logged content of a run.

    Attributes:
        name: name of the run, derived from its directory.
        metrics: values by name. Times are in milliseconds per step.
        columns, rows: the table of findings.
        report: path of the HTML page.
    """

    schema: str = TRACKED_SCHEMA
    name: str
    metrics: dict[str, float]
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]
    report: str
