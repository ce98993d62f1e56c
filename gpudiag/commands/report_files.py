"""Reports as files: HTML, Markdown and CSV, of a run or of a scaling benchmark, from what its directory holds."""

from pathlib import Path
from typing import TYPE_CHECKING

from gpudiag.errors import GpudiagError, UnreadableInputError

if TYPE_CHECKING:
    from gpudiag.model.analysis import Analysis
    from gpudiag.model.facts import Facts
    from gpudiag.model.scaling import Scaling
    from gpudiag.model.step_view import StepView

REPORT_FILE = "report.html"


def scaling_of(paths: list[str]) -> "tuple[Scaling, Path] | None":
    """The scaling result that a single path names, with its directory; None where it names something else.

    Raises:
        UnreadableInputError: it is one, but broken or of another version.
    """
    from gpudiag.model.scaling import SCALING_FILE, SCALING_SCHEMA, Scaling
    from gpudiag.run_files import read_json

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


def write_scaling(result: "Scaling", directory: Path) -> None:
    """`report.html`, `scaling.csv` and `scaling.md` into the directory of a benchmark."""
    from gpudiag.reporting import scaling_text

    scaling_html(result, directory, directory / REPORT_FILE)
    write_text(directory / "scaling.csv", scaling_text.to_csv(result.points))
    write_text(directory / "scaling.md", scaling_text.to_markdown(result))


def scaling_html(result: "Scaling", directory: Path, path: Path) -> None:
    """One page: the scaling, the machine, and the recorded steps of the first point with a waterfall that has some."""
    from gpudiag.reporting.page.render import write_report
    from gpudiag.scaling.store import recorded

    by_id = {point.id: point for point in result.points}
    shown = [by_id[fall.point] for fall in result.waterfalls if fall.point in by_id]
    # The id is a name that gpudiag made; a hostile one must not lead out of the directory.
    runs = [(point, directory_of) for point in shown if (directory_of := recorded(directory, Path(point.id).name))]
    told, run = runs[0] if runs else (None, None)
    analysis = _analysis(run) if run is not None else None
    heading = ""
    if told is not None:
        heading = (
            f"Recorded steps of {told.workload}, {told.strategy}, {told.devices} devices. They were timed after other "
            "points had been recorded, which makes launches dearer: the throughput above is the point's"
        )
    write_report(
        path,
        scaling=result,
        facts=facts_beside(directory),
        analysis=analysis,
        step=step_beside(run) if run is not None and analysis is not None else None,
        run_heading=heading,
    )


def run_html(analysis: "Analysis", step: "StepView | None", directory: Path | None, path: Path) -> None:
    """One run's page."""
    from gpudiag.reporting.page.render import write_report

    facts = facts_beside(directory) if directory is not None else None
    write_report(path, analysis=analysis, step=step, facts=facts)


def _analysis(directory: Path) -> "Analysis | None":
    from gpudiag.model.analysis import ANALYSIS_SCHEMA, Analysis
    from gpudiag.run_files import ANALYSIS_FILE, read_json

    try:
        return read_json(directory / ANALYSIS_FILE, Analysis, ANALYSIS_SCHEMA)
    except UnreadableInputError:
        return None


def step_beside(directory: Path) -> "StepView | None":
    """The step that a run directory kept for drawing; None where there is none that can be read."""
    from gpudiag.model.step_view import STEP_FILE, STEP_SCHEMA, StepView
    from gpudiag.run_files import read_json

    try:
        return read_json(directory / STEP_FILE, StepView, STEP_SCHEMA)
    except UnreadableInputError:
        return None


def facts_beside(directory: Path) -> "Facts | None":
    """The machine's facts in a directory; None where there are none that can be read."""
    from gpudiag.probing.facts_file import load_facts
    from gpudiag.run_files import FACTS_FILE

    try:
        return load_facts(directory / FACTS_FILE)
    except UnreadableInputError:
        return None


def write_text(path: Path, text: str) -> None:
    """Write a file.

    Raises:
        GpudiagError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise GpudiagError(f"cannot write {path}: {error.strerror or error}", "Choose another place.") from error
