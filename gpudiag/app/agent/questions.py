"""Answer an agent's questions about recordings. Each answer is JSON or text of bounded size."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gpudiag.analysis.comparison import compare
from gpudiag.app.agent.allowed_paths import AllowedPaths
from gpudiag.app.agent.bounded_answer import bounded_json
from gpudiag.app.analyze import analysis_with_step
from gpudiag.app.explain import explain
from gpudiag.app.report import step_beside
from gpudiag.errors import UnreadableInputError, UsageError, there_are
from gpudiag.model.analysis import BUCKETS, FINDING_CODES, Analysis, Finding
from gpudiag.model.frames import Frames
from gpudiag.model.step_view import StepView
from gpudiag.report.text.step_timeline import step_timeline
from gpudiag.report.verdict import verdict_of
from gpudiag.trace import ReadLimits

#: Number of analyses that are kept for further questions.
_MOST_KEPT = 4
#: Maximum number of rows of a table in one answer.
MOST_ROWS = 200
NARROWEST, WIDEST = 40, 200


class Questions:
    """Questions about the recordings in one directory. Paths and `world_size` of a question are as for `analyze`.

    Args:
        paths: the allowed paths.
        most_characters: maximum length of an answer.
        limits: limits on the traces that are read; None for the default limits.
    """

    def __init__(self, paths: AllowedPaths, most_characters: int, limits: ReadLimits | None = None) -> None:
        self._paths = paths
        self._most_characters = most_characters
        self._limits = limits
        #: Only one analysis runs at a time, because each takes all cores and much memory.
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[object, ...], tuple[Analysis, StepView | None]] = OrderedDict()

    def analyze(self, paths: Sequence[str], world_size: int | None = None) -> str:
        """Return the verdict, step times, buckets per rank, and a line per finding and warning."""
        analysis, _ = self._analysis(paths, world_size)
        verdict = verdict_of(analysis)
        words = {"severity": verdict.severity, "title": verdict.title, "gain": verdict.gain, "where": verdict.where}
        devices = analysis.devices
        means = {b: sum(d.buckets_ms.get(b, 0.0) for d in devices) / len(devices) for b in BUCKETS} if devices else {}
        return self._json(
            {
                "verdict": {**words, "confidence": verdict.confidence, "next": verdict.steps},
                "framework": analysis.framework,
                "workload": analysis.workload,
                "device_kind": analysis.device_kind,
                "world_size": analysis.world_size,
                "ranks_present": analysis.ranks_present,
                # Without the times of all unprofiled steps, which would fill the answer.
                "steps": _fields(msgspec.structs.replace(analysis.steps, unprofiled_times_ms=())),
                "mean_buckets_ms": means,
                "findings": [_in_short(finding) for finding in analysis.findings],
                "warnings": analysis.validity,
                "ranks": [
                    {"rank": d.rank, "device": d.name or d.device, "step_ms": d.step_ms, **d.buckets_ms}
                    for d in devices
                ],
            }
        )

    def findings(self, paths: Sequence[str], code: str | None = None, world_size: int | None = None) -> str:
        """Return findings with evidence, advice and source lines: all findings, or only those with `code`."""
        if code is not None and code not in FINDING_CODES:
            raise UsageError(f"there is no finding '{code}'", there_are(code, FINDING_CODES))
        analysis, _ = self._analysis(paths, world_size)
        chosen = [finding for finding in analysis.findings if code in {None, finding.code}]
        return self._json({"findings": chosen, "warnings": analysis.validity, "explained": analysis.explained})

    def compare(self, before: Sequence[str], after: Sequence[str]) -> str:
        """Return the attribution of the difference between two runs' step times (schema `gpudiag/diff/1`)."""
        return self._json(_fields(compare(self._analysis(before, None)[0], self._analysis(after, None)[0])))

    def table(
        self,
        paths: Sequence[str],
        name: str,
        columns: Sequence[str] = (),
        order_by: str | None = None,
        limit: int = 50,
    ) -> str:
        """Return at most `limit` (and `MOST_ROWS`) rows of the table `name` of `Analysis.frames()`.

        `columns` is empty for all columns. `order_by` is a column whose largest values come first.
        """
        if name not in Frames._fields:
            raise UsageError(f"there is no table '{name}'", there_are(name, Frames._fields))
        frame = getattr(self._analysis(paths, None)[0].frames(), name)
        for column in (*columns, *([order_by] if order_by else [])):
            if column not in frame.columns:
                raise UsageError(f"table '{name}' has no column '{column}'", there_are(column, frame.columns))
        rows = frame.sort_values(order_by, ascending=False) if order_by else frame
        rows = (rows[list(columns)] if columns else rows).head(min(max(limit, 0), MOST_ROWS))
        values = rows.astype(object).where(rows.notna(), None).to_dict("records")
        answer = {"table": name, "columns": list(frame.columns), "rows": values, "rows_in_table": len(frame)}
        return self._json(answer)

    def explain(self, code: str) -> str:
        """Return the documentation of a finding or a warning, and the path of its page."""
        known = _fields(explain(code))
        page = code if known["kind"] == "finding" else "warnings"
        return self._json({**known, "page": f"docs/findings/{page}.md"})

    def picture(self, paths: Sequence[str], width: int = 100) -> str:
        """Return a step of all ranks as text, with `width` characters per rank, limited to 40 to 200."""
        _, step = self._analysis(paths, None)
        # A saved analysis has no step, but its run directory may have one.
        if step is None and len(paths) == 1 and Path(self._paths.existing(paths)[0]).is_dir():
            step = step_beside(Path(self._paths.existing(paths)[0]))
        if step is None:
            raise UnreadableInputError("there is no step to draw", "Give a run directory with its traces.")
        text = step_timeline(step, min(max(width, NARROWEST), WIDEST))
        most = self._most_characters
        return text if len(text) <= most else f"{text[:most]}\n(cut: {most} of {len(text)} characters)"

    def _analysis(self, paths: Sequence[str], world_size: int | None) -> tuple[Analysis, StepView | None]:
        """Return the analysis and a typical step, kept from an earlier question if the files are unchanged."""
        checked = self._paths.existing(paths)
        with self._lock:
            key = (world_size, *map(_recording_key, checked))
            if key not in self._kept:
                self._kept[key] = analysis_with_step(checked, world_size=world_size, limits=self._limits)
                while len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]

    def _json(self, answer: dict[str, Any]) -> str:
        return bounded_json(msgspec.to_builtins(answer, enc_hook=_plain), self._most_characters)


def _recording_key(path: str) -> tuple[object, ...]:
    """Return a key that changes if the path is recorded again: the path, and the times and sizes of its files."""
    top = Path(path)
    files = [top, *sorted(top.iterdir()), *sorted(top.glob("traces/*"))] if top.is_dir() else [top]
    states = [(file.name, file.lstat()) for file in files]
    return (path, *((name, state.st_mtime_ns, state.st_size) for name, state in states))


def _fields(struct: msgspec.Struct) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(struct)
    return values


def _in_short(finding: Finding) -> dict[str, Any]:
    names = ("code", "severity", "cause", "ranks", "title", "recoverable_ms_per_step", "confidence")
    return {name: getattr(finding, name) for name in names}


def _plain(value: object) -> object:
    """Convert a NumPy number to a Python number, and any other value to text."""
    return value.item() if hasattr(value, "item") else str(value)
