"""Puts the page together: one file, nothing loaded, every text escaped, only its own script allowed to run."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import gpudiag
from gpudiag.errors import UsageError
from gpudiag.model.analysis import Analysis
from gpudiag.model.benchmarks.scaling import Scaling
from gpudiag.model.facts import Facts
from gpudiag.model.step_view import StepView
from gpudiag.report.page.machine import machine_part
from gpudiag.report.page.run import run_part
from gpudiag.report.page.scaling import scaling_part
from gpudiag.report.page.templating import templates, write_page

_LONGEST = 1000
#: Drawings and JSON made by this package, which have been escaped already.
_FINISHED = frozenset(
    {"graph", "throughput", "efficiency", "relative", "drawing", "step_json", "buckets_json", "others_packed"}
)


def write_report(path: Path, **nouns: Any) -> None:
    """Write `report(**nouns)` to a file.

    Raises:
        GpudiagError: the file cannot be written.
        UsageError: there is nothing to show.
    """
    write_page(report(**nouns), path)


def report(
    *,
    analysis: Analysis | None = None,
    step: StepView | None = None,
    facts: Facts | None = None,
    scaling: Scaling | None = None,
    run_heading: str = "",
) -> str:
    """The page's HTML, of whatever is given.

    Args:
        analysis: of one run.
        step: one step of it.
        facts: of the machine.
        scaling: of a benchmark.
        run_heading: which run of the benchmark `analysis` is.

    Raises:
        UsageError: neither an analysis nor a scaling result is given.
    """
    if analysis is None and scaling is None:
        raise UsageError("there is nothing to report", "Give a run directory, traces, or a directory of a scale run.")
    environment = templates(_LONGEST)
    environment.filters["slug"] = _slug
    source, _, _ = environment.loader.get_source(environment, "timeline.js")
    run = _finished(run_part(analysis, step, run_heading)) if analysis is not None else None
    scaled = _finished(scaling_part(scaling)) if scaling is not None else None
    machine = _finished(machine_part(facts)) if facts is not None and (facts.gpus or facts.bandwidth) else None
    leading = scaled or run or {}
    page: str = environment.get_template("report.html.j2").render(
        title=leading["title"],
        subtitle=[text for text in leading.get("subtitle", []) if text],
        contents=_contents(run, scaled, machine),
        run=run,
        scaling=scaled,
        machine=machine,
        version=gpudiag.__version__,
        script=_markup(source),
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}",
    )
    return page


def style_sheet() -> str:
    """The page's style, with its colours for light and dark, for drawings that stand by themselves."""
    text: str = templates(_LONGEST).get_template("page.css").render()
    return text


def _contents(run: dict[str, Any] | None, scaled: dict[str, Any] | None, machine: dict[str, Any] | None) -> list[str]:
    names = []
    if scaled is not None:
        names.append("Scaling")
        names += ["Waterfall"] if scaled["waterfalls"] else []
        names += ["More devices"] if scaled["prospects"] else []
    if run is not None:
        names += ["Summary", "Where a step's time goes"]
        names += ["One step"] if run["timeline"] else []
        names += ["Findings"] if run["findings"] else []
        names += ["Top kernels"] if run["kernels"] else []
        names += ["Modules"] if run["module_rows"] or run["modules_note"] else []
        names.append("How far to trust this")
    return [*names, *(["Machine"] if machine is not None else [])]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _finished(value: Any, name: str = "") -> Any:
    """The variables with this package's own drawings marked as such, so that only they are not escaped again."""
    if isinstance(value, dict):
        return {key: _finished(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finished(inner) for inner in value]
    return _markup(value) if name in _FINISHED and isinstance(value, str) else value


def _markup(text: str) -> Any:
    import markupsafe  # noqa: PLC0415  # comes with the template engine

    return markupsafe.Markup(text)  # noqa: S704  # the callers pass what this package itself has drawn and escaped
