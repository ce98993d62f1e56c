"""Write the tables and plots of docs/results/ from the output of `gpudiag scale`.

`gpudiag table --form all` writes seeds.md in the same folder.

    python docs/results.py RUNS/scale --name h200x4 [--beside other=RUNS/other] [--bare bare.json]

`--beside` names runs of the same points on other machines; `--bare` is the output of `benchmarks/bare_ddp.py` on the
last machine that `--beside` names.

The files contain no handwritten text, so a new run replaces them entirely. The plots are the drawings of the HTML
report; each file has colours for light and dark pages.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

from gpudiag.model.benchmarks.scaling import SCALING_FILE, SCALING_SCHEMA, PointRecord, Scaling
from gpudiag.model.run import RUN_SCHEMA, RunRecord
from gpudiag.model.run_directory import RUN_FILE, read_json
from gpudiag.report.markup import escaped, markdown_table
from gpudiag.report.page.render import style_sheet
from gpudiag.report.page.scaling import scaling_part
from gpudiag.report.scaling.text import to_csv, to_markdown

RESULTS = Path(__file__).parent / "results"

#: Workloads of the table that is required for each machine.
WORKLOADS = ("resnet50", "vgg16", "gpt", "unet3d", "mlp")
STRATEGIES = ("nccl", "nccl-no-p2p", "cpu-reduce", "independent")
DEVICES = (1, 2, 4)


def main() -> None:
    """Write all files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--name", default="scaling", help="names the files")
    parser.add_argument("--beside", action="append", default=[], metavar="NAME=DIR")
    parser.add_argument("--bare", type=Path)
    given = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    result = _write(given.name, given.directory)
    others = []
    for name, _, directory in (beside.partition("=") for beside in given.beside):
        others.append((name, _write(name, Path(directory)), Path(directory)))
    lines = ["# How far results repeat", "", "Made by `python docs/results.py`.", ""]
    lines += _repeats(result, others, given.directory)
    lines += ["", *_bare(given.bare, others)] if given.bare is not None else []
    (RESULTS / "repeats.md").write_text("\n".join([*lines, ""]).rstrip() + "\n", encoding="utf-8")


def _write(name: str, directory: Path) -> Scaling:
    """Write a run's page, table and plots."""
    result = read_json(directory / SCALING_FILE, Scaling, SCALING_SCHEMA)
    pictures = "".join(f"![{escaped(title)}]({path})\n\n" for title, path in _plots(result, name))
    first, _, rest = to_markdown(result).partition("\n")
    parts = (first, "", _head(result), rest.strip(), "", *_missing(result), "## Plots", "", pictures.strip(), "")
    (RESULTS / f"{name}.md").write_text("\n".join(parts), encoding="utf-8")
    (RESULTS / f"{name}.csv").write_text(to_csv(result.points), encoding="utf-8")
    return result


def _head(result: Scaling) -> str:
    command = re.sub(r" --output \S+", "", " ".join(result.command))
    return f"Made by `python docs/results.py` from one run of `{command}`, {result.points[0].created[:10]}.\n"


def _plots(result: Scaling, name: str) -> list[tuple[str, str]]:
    """Write each drawing to a separate file, and return its title and its path relative to the pages."""
    part = scaling_part(result)
    drawings = [
        (f"{what} of {group['setting']}", group[what], [] if what == "relative" else group["legend"])
        for group in part["groups"]
        for what in ("throughput", "efficiency", "relative")
    ]
    drawings += [(fall["title"], fall["drawing"], []) for fall in part["waterfalls"]]
    made = []
    for number, (title, drawing, legend) in enumerate((entry for entry in drawings if entry[1]), start=1):
        path = f"{name}-{number:02d}.svg"
        (RESULTS / path).write_text(_standing_alone(drawing, legend) + "\n", encoding="utf-8")
        made.append((title, path))
    return made


def _standing_alone(drawing: str, legend: list[tuple[str, str]]) -> str:
    """Return a drawing of the HTML report as a separate file, with the report's colours and legend."""
    root = ET.fromstring(drawing)  # noqa: S314 # written by gpudiag
    width, height = (float(number) for number in root.attrib["viewBox"].split()[2:])
    for row, (name, colour) in enumerate(legend):
        top = height + 6 + 18 * row
        box = {"x": "60", "y": f"{top:g}", "width": "12", "height": "12", "style": f"fill:var(--{colour})"}
        ET.SubElement(root, "rect", box)
        words = ET.SubElement(root, "text", {"x": "80", "y": f"{top + 10:g}", "class": "tick"})
        words.text = name
    root.set("viewBox", f"0 0 {width:g} {height + (6 + 18 * len(legend) if legend else 0):g}")
    root.set("xmlns", "http://www.w3.org/2000/svg")
    style = ET.Element("style")
    style.text = style_sheet()
    root.insert(0, style)
    return ET.tostring(root, encoding="unicode")


def _missing(result: Scaling) -> list[str]:
    """Return a line for each missing row of the required table, with the reason."""
    reached = {(point.workload, point.strategy, point.devices) for point in result.points if point.status == "measured"}
    failed = {(point.workload, point.strategy, point.devices): point.error for point in result.points if point.error}
    rows = []
    for workload, strategy in itertools.product(WORKLOADS, STRATEGIES):
        alone = {"nccl-no-p2p": "nccl", "cpu-reduce": "independent"}.get(strategy, strategy)
        missing = [n for n in DEVICES if (workload, alone if n == 1 else strategy, n) not in reached]
        if missing:
            why = next((failed[workload, strategy, n] for n in missing if (workload, strategy, n) in failed), None)
            rows.append((workload, strategy, ", ".join(map(str, missing)), why or "no time on the machine"))
    if not rows:
        return []
    return ["## Not measured", "", *markdown_table(("workload", "strategy", "devices", "why"), rows, left=4), ""]


def _repeats(first: Scaling, others: list[tuple[str, Scaling, Path]], place: Path) -> list[str]:
    """Return a table of points and their repetitions: the run that recorded traces, and runs on other machines."""
    rows = []
    for point in first.points:
        again = _again(place, point)
        if again is not None and point.step_ms is not None:
            rows.append(_repeat(point, again, "same processes, after other points and before its own recording"))
    by_id = {point.id: point for point in first.points}
    for name, other, _ in others:
        for point in other.points:
            before = by_id.get(point.id)
            if before is not None and before.step_ms is not None and point.step_ms is not None:
                rows.append(_repeat(before, point.step_ms, f"another machine of the same kind ({name})"))
    if not rows:
        return []
    note = (
        "The steps of recorded points were first timed again in processes that had recorded other points before. "
        "The profiler's library stays loaded and increases the overhead of launches, so models that launch "
        "many short kernels (ResNet-50) take longer, and models that keep the device busy (GPT) do not."
    )
    return [
        "## The same points again",
        "",
        *markdown_table(("point", "step ms", "again", "difference", "where"), rows, left=1),
        "",
        note,
    ]


def _again(place: Path, point: PointRecord) -> float | None:
    """Return the mean unprofiled step time in ms of the slowest rank in the run that recorded a point's traces."""
    path = place / "points" / point.id / "profile" / RUN_FILE
    if point.profiled is None or not path.is_file():
        return None
    run = read_json(path, RunRecord, RUN_SCHEMA)
    return max((rank.unprofiled.mean_ms for rank in run.ranks if rank.unprofiled is not None), default=None)


def _repeat(point: PointRecord, again: float, where: str) -> tuple[str, ...]:
    before = point.step_ms or 0.0
    name = f"{point.workload}, {point.strategy}, {point.devices}"
    return (name, f"{before:.2f}", f"{again:.2f}", f"{100 * (again / before - 1):+.1f} %", where)


def _bare(path: Path, others: list[tuple[str, Scaling, Path]]) -> list[str]:
    """Return a table that compares gpudiag's throughput with that of a plain loop on the same machine."""
    bare = json.loads(path.read_text(encoding="utf-8").strip().splitlines()[-1])
    rows = [
        (
            name,
            f"{bare['samples_per_s']:,.0f}",
            f"{point.samples_per_s:,.0f}",
            f"{100 * (point.samples_per_s / bare['samples_per_s'] - 1):+.1f} %",
            f"{100 * (point.ci95[1] - point.ci95[0]) / 2 / point.samples_per_s:.1f} %",
        )
        for name, other, _ in others
        for point in other.points
        if (point.workload, point.strategy, point.devices) == ("resnet50", "nccl", bare["devices"])
        and point.samples_per_s is not None
        and point.ci95 is not None
    ]
    headings = ("machine", "bare loop, samples/s", "gpudiag scale", "difference", "±")
    note = "`benchmarks/bare_ddp.py` is the same model under DistributedDataParallel with nothing of gpudiag around it."
    return ["## Beside a bare loop", "", *markdown_table(headings, rows, left=1), "", note, ""]


if __name__ == "__main__":
    main()
