"""`gpudiag report`: find the analysis or scaling result to draw, and write report files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpudiag.app.analyze import analysis_with_step, load_analysis
from gpudiag.app.scale.store import recorded_directory
from gpudiag.errors import UnreadableInputError
from gpudiag.machine.facts_file import load_facts
from gpudiag.model.analysis import ANALYSIS_SCHEMA, Analysis
from gpudiag.model.benchmarks.scaling import SCALING_FILE, SCALING_SCHEMA, Scaling
from gpudiag.model.facts import Facts
from gpudiag.model.run_directory import ANALYSIS_FILE, FACTS_FILE, read_json, readable_json, write_beside, write_output
from gpudiag.model.step_view import STEP_FILE, STEP_SCHEMA, StepView
from gpudiag.report.page.render import report as page_of
from gpudiag.report.page.render import write_report
from gpudiag.report.scaling import text as scaling_text
from gpudiag.report.text import run as run_text
from gpudiag.trace import ReadLimits

REPORT_FILE = "report.html"


def report(
    paths: Sequence[str],
    *,
    html: Path | None = None,
    markdown: Path | None = None,
    csv: Path | None = None,
    world_size: int | None = None,
    limits: ReadLimits | None = None,
) -> Analysis | Scaling:
    """Return the analysis or scaling result of the paths, and write its report to each given file.

    Args:
        paths: traces, a run directory or a saved analysis, or the directory of a scaling benchmark.
        html, markdown, csv: report files.
        world_size, limits: as for `analyze`.
    """
    scaling_result = read_scaling(paths)
    if scaling_result is not None:
        scaling, directory = scaling_result
        if html is not None:
            write_text(html, _scaling_page(scaling, directory))
        if markdown is not None:
            write_text(markdown, scaling_text.to_markdown(scaling))
        if csv is not None:
            write_text(csv, scaling_text.to_csv(scaling.points))
        return scaling
    if html is not None:
        analysis = _analysis_with_page(paths, html, world_size=world_size, limits=limits)
    else:
        analysis = load_analysis(paths, world_size=world_size, limits=limits)
    if markdown is not None:
        write_text(markdown, run_text.to_markdown(analysis))
    if csv is not None:
        write_text(csv, run_text.to_csv(analysis))
    return analysis


def _analysis_with_page(
    paths: Sequence[str], html: Path, *, world_size: int | None, limits: ReadLimits | None
) -> Analysis:
    """Return the analysis, and write its HTML page."""
    analysis, step = analysis_with_step(paths, world_size=world_size, limits=limits)
    path = Path(paths[0])
    directory = None if len(paths) > 1 else path if path.is_dir() else path.parent
    if step is None and directory is not None:  # a saved analysis may have a saved step beside it
        step = step_beside(directory)
    run_html(analysis, step, directory, html)
    return analysis


def read_scaling(paths: Sequence[str]) -> tuple[Scaling, Path] | None:
    """Return the scaling result at a single path and its directory; None if the path has another content."""
    if len(paths) != 1:
        return None
    path = Path(paths[0])
    path = path / SCALING_FILE if path.is_dir() else path
    if not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(4096)
    if b'"gpudiag/scaling/' not in head:
        return None
    return read_json(path, Scaling, SCALING_SCHEMA), path.parent


def write_scaling(result: Scaling, directory: Path) -> None:
    """Write `report.html`, `scaling.csv` and `scaling.md` into the directory of a benchmark.

    The directory may be untrusted, so links at these paths are replaced rather than followed.
    """
    write_beside(directory / REPORT_FILE, _scaling_page(result, directory).encode())
    write_beside(directory / "scaling.csv", scaling_text.to_csv(result.points).encode())
    write_beside(directory / "scaling.md", scaling_text.to_markdown(result).encode())


def _scaling_page(result: Scaling, directory: Path) -> str:
    """Return a page with the scaling, the machine, and the steps of the first recorded point that has a waterfall.

    A waterfall is the breakdown of a point's lost efficiency.
    """
    by_id = {point.id: point for point in result.points}
    points = [by_id[fall.point] for fall in result.waterfalls if fall.point in by_id]
    # `.name` prevents a manipulated id from naming a directory elsewhere.
    runs = [(point, run_dir) for point in points if (run_dir := recorded_directory(directory, Path(point.id).name))]
    recorded, run = runs[0] if runs else (None, None)
    analysis = readable_json(run / ANALYSIS_FILE, Analysis, ANALYSIS_SCHEMA) if run is not None else None
    heading = ""
    if recorded is not None:
        heading = (
            f"Recorded steps of {recorded.workload}, {recorded.strategy}, {recorded.devices} devices. Their launches "
            "have higher overhead, because other points were recorded before; the throughput above was measured "
            "without the profiler"
        )
    return page_of(
        scaling=result,
        facts=facts_beside(directory),
        analysis=analysis,
        step=step_beside(run) if run is not None and analysis is not None else None,
        run_heading=heading,
    )


def run_html(analysis: Analysis, step: StepView | None, directory: Path | None, path: Path) -> None:
    """Write the HTML page of one run to `path`, with the machine's facts in `directory`, if any."""
    facts = facts_beside(directory) if directory is not None else None
    write_report(path, analysis=analysis, step=step, facts=facts)


def step_beside(directory: Path) -> StepView | None:
    """Read the typical step that is saved in a run directory; return None if it cannot be read."""
    return readable_json(directory / STEP_FILE, StepView, STEP_SCHEMA)


def facts_beside(directory: Path) -> Facts | None:
    """Read the machine's facts in a directory; return None if they cannot be read."""
    try:
        return load_facts(directory / FACTS_FILE)
    except UnreadableInputError:
        return None


def write_text(path: Path, text: str) -> None:
    """Write text to a file or standard output, with the rules of `write_output`."""
    write_output(path, text.encode())
