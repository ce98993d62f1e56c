"""`gpudiag report`: what a run or a scaling benchmark is drawn from, and its reports as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpudiag.app.analyze import analysis_of, analysis_with_step
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
    """What the paths name, to be drawn, and its report in each file that is wanted.

    Args:
        paths: traces, a run directory or a saved analysis, or the directory of a scaling benchmark.
        html, markdown, csv: where to write a report of that kind.
        world_size, limits: as of `analyze`.

    Raises:
        UnreadableInputError: they name nothing that can be drawn.
        GpudiagError: a file cannot be written.
    """
    known = scaling_of(paths)
    if known is not None:
        scaling, directory = known
        if html is not None:
            scaling_html(scaling, directory, html)
        if markdown is not None:
            write_text(markdown, scaling_text.to_markdown(scaling))
        if csv is not None:
            write_text(csv, scaling_text.to_csv(scaling.points))
        return scaling
    if html is not None:
        analysis = _analysis_with_page(paths, html, world_size=world_size, limits=limits)
    else:
        analysis = analysis_of(paths, world_size=world_size, limits=limits)
    if markdown is not None:
        write_text(markdown, run_text.to_markdown(analysis))
    if csv is not None:
        write_text(csv, run_text.to_csv(analysis))
    return analysis


def _analysis_with_page(
    paths: Sequence[str], html: Path, *, world_size: int | None, limits: ReadLimits | None
) -> Analysis:
    analysis, step = analysis_with_step(paths, world_size=world_size, limits=limits)
    given = Path(paths[0])
    directory = None if len(paths) > 1 else given if given.is_dir() else given.parent
    if step is None and directory is not None:
        step = step_beside(directory)
    run_html(analysis, step, directory, html)
    return analysis


def scaling_of(paths: Sequence[str]) -> tuple[Scaling, Path] | None:
    """The scaling result that a single path names, with its directory; None where it names something else.

    Raises:
        UnreadableInputError: it is one, but broken or of another version.
    """
    if len(paths) != 1:
        return None
    given = Path(paths[0])
    path = given / SCALING_FILE if given.is_dir() else given
    if not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(4096)
    if b'"gpudiag/scaling/' not in head:
        return None
    return read_json(path, Scaling, SCALING_SCHEMA), path.parent


def write_scaling(result: Scaling, directory: Path) -> None:
    """Write `report.html`, `scaling.csv` and `scaling.md` into the directory of a benchmark.

    The directory may come from another person, so that links in the places of these files are replaced, not followed.
    """
    write_beside(directory / REPORT_FILE, _scaling_page(result, directory).encode())
    write_beside(directory / "scaling.csv", scaling_text.to_csv(result.points).encode())
    write_beside(directory / "scaling.md", scaling_text.to_markdown(result).encode())


def scaling_html(result: Scaling, directory: Path, path: Path) -> None:
    """Write the page of a benchmark where a person said."""
    write_text(path, _scaling_page(result, directory))


def _scaling_page(result: Scaling, directory: Path) -> str:
    """One page: the scaling, the machine, and the recorded steps of the first point with a waterfall that has some."""
    by_id = {point.id: point for point in result.points}
    shown = [by_id[fall.point] for fall in result.waterfalls if fall.point in by_id]
    # The id is a name that gpudiag made; a hostile one must not lead out of the directory.
    runs = [(point, run_dir) for point in shown if (run_dir := recorded_directory(directory, Path(point.id).name))]
    told, run = runs[0] if runs else (None, None)
    analysis = readable_json(run / ANALYSIS_FILE, Analysis, ANALYSIS_SCHEMA) if run is not None else None
    heading = ""
    if told is not None:
        heading = (
            f"Recorded steps of {told.workload}, {told.strategy}, {told.devices} devices. They were timed after other "
            "points had been recorded, which makes launches dearer: the throughput above is the point's"
        )
    return page_of(
        scaling=result,
        facts=facts_beside(directory),
        analysis=analysis,
        step=step_beside(run) if run is not None and analysis is not None else None,
        run_heading=heading,
    )


def run_html(analysis: Analysis, step: StepView | None, directory: Path | None, path: Path) -> None:
    """One run's page."""
    facts = facts_beside(directory) if directory is not None else None
    write_report(path, analysis=analysis, step=step, facts=facts)


def step_beside(directory: Path) -> StepView | None:
    """The step that a run directory kept for drawing; None where there is none that can be read."""
    return readable_json(directory / STEP_FILE, StepView, STEP_SCHEMA)


def facts_beside(directory: Path) -> Facts | None:
    """The machine's facts in a directory; None where there are none that can be read."""
    try:
        return load_facts(directory / FACTS_FILE)
    except UnreadableInputError:
        return None


def write_text(path: Path, text: str) -> None:
    """Write text as `write_output` does."""
    write_output(path, text.encode())
