"""Assemble HTML pages. A page loads no other files, its text is escaped, and only gpudiag's script may run in it."""

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
from gpudiag.model.run_directory import write_output
from gpudiag.model.sanitize import one_line
from gpudiag.model.step_view import StepView
from gpudiag.report import figures
from gpudiag.report.facts import tables, words
from gpudiag.report.page.machine import machine_part
from gpudiag.report.page.run import run_part
from gpudiag.report.page.scaling import scaling_part

_LONGEST = 1000
_LONGEST_FACT = 400
#: Variables with drawings and JSON of this package, in which all text is escaped already.
_FINISHED = frozenset(
    {"graph", "throughput", "efficiency", "relative", "drawing", "step_json", "buckets_json", "others_packed"}
)


def write_report(path: Path, **contents: Any) -> None:
    """Write `report(**contents)` to a file.

    Raises:
        GpudiagError: the file cannot be written.
        UsageError: there is nothing to show.
    """
    write_page(report(**contents), path)


def write_page(page: str, path: Path) -> None:
    """Write a page as `write_output` does."""
    write_output(path, page.encode())


def report(
    *,
    analysis: Analysis | None = None,
    step: StepView | None = None,
    facts: Facts | None = None,
    scaling: Scaling | None = None,
    run_heading: str = "",
) -> str:
    """Return the HTML of a run, a benchmark, or both.

    Without `step` there is no timeline. `facts` are shown if they have GPUs or bandwidths. `run_heading` is the heading
    of the run in a benchmark's page.

    Raises:
        UsageError: neither an analysis nor a scaling result is given.
    """
    if analysis is None and scaling is None:
        raise UsageError("there is nothing to report", "Give a run directory, traces, or a directory of a scale run.")
    environment = _templates(_LONGEST)
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
        # The template's Content-Security-Policy allows only the script with this hash.
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}",
    )
    return page


def bandwidth_page(facts: Facts) -> str:
    """Return the HTML of a machine's measured bandwidth."""
    total = facts.probes.get("total")
    wrong, unchecked, paths = tables.checks(facts)
    page: str = (
        _templates(_LONGEST_FACT)
        .get_template("bandwidth.html.j2")
        .render(
            facts=facts,
            models=words.models(facts.gpus) if facts.gpus else "no NVIDIA GPU",
            total_s=total.get("seconds") if isinstance(total, dict) else None,
            matrices=tables.copy_matrices(facts),
            collectives=tables.collective_matrix(facts),
            fits=tables.fits(facts),
            latency=tables.latency_rows(facts),
            host_memory=tables.host_memory_rows(facts),
            ceilings=tables.ceiling_sources(facts),
            above_ceilings=tables.above_ceilings(facts),
            wrong=wrong,
            unchecked=unchecked,
            paths=paths,
        )
    )
    return page


def style_sheet() -> str:
    """Return the style sheet with light and dark colors, which drawings need inside and outside of a page."""
    text: str = _templates(_LONGEST).get_template("page.css").render()
    return text


def _templates(longest: int) -> Any:
    """Return the `jinja2.Environment`. Text from files is cut at `longest` characters."""
    import jinja2  # noqa: PLC0415 # only pages need it

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gpudiag.report.page", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["figure"] = figures.rate
    environment.filters["heat"] = heat_bucket
    environment.filters["line"] = lambda text: one_line(str(text))[:longest]
    return environment


def heat_bucket(share: float | None) -> int:
    """Return the number of the color for a share of the ceiling, from 0 to 10."""
    return 0 if share is None else max(0, min(10, round(10 * share)))


def _contents(run: dict[str, Any] | None, scaled: dict[str, Any] | None, machine: dict[str, Any] | None) -> list[str]:
    """Return the headings of the page's sections."""
    sections: dict[str, Any] = {}
    if scaled is not None:
        sections |= {"Scaling": True, "Waterfall": scaled["waterfalls"], "More devices": scaled["prospects"]}
    if run is not None:
        sections |= {
            "Summary": True,
            "Where a step's time goes": True,
            "Parallelism": run["parallel"],
            "Source lines": run["source_tables"],
            "One step": run["timeline"],
            "Findings": run["findings"],
            "Top kernels": run["kernels"],
            "Modules": run["module_rows"] or run["modules_note"],
            "How far to trust this": True,
        }
    return [name for name, present in {**sections, "Machine": machine}.items() if present]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _finished(value: Any, name: str = "") -> Any:
    """Mark the variables in `_FINISHED` as escaped. `value` is the variable `name`, or contains variables by name."""
    if isinstance(value, dict):
        return {key: _finished(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finished(inner) for inner in value]
    return _markup(value) if name in _FINISHED and isinstance(value, str) else value


def _markup(text: str) -> Any:
    import markupsafe  # noqa: PLC0415 # a dependency of the template engine

    return markupsafe.Markup(text)  # noqa: S704 # callers pass only drawings that this package has escaped
