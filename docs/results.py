"""Writes docs/results/ from what `gpudiag scale` wrote: tables, plots, and the forms of earlier systems' tables.

    python docs/results.py RUNS/scale [--name h200x4]

Nothing in it is written by hand, so that a new run replaces all of it. The plots are the page's own drawings, with its
colours for light and dark in each file.
"""

from __future__ import annotations

import argparse
import re
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from gpudiag.model.scaling import SCALING_FILE, SCALING_SCHEMA, ScalePoint, Scaling
from gpudiag.reporting import scaling_words as words
from gpudiag.reporting.page.render import style_sheet
from gpudiag.reporting.page.scaling_page import scaling_part
from gpudiag.reporting.scaling_text import escaped, table, to_csv, to_markdown
from gpudiag.run_files import read_json

if TYPE_CHECKING:
    from collections.abc import Iterable

RESULTS = Path(__file__).parent / "results"

#: Iterations that the 3D U-Net's systems trained for, and the volume that they predicted.
ITERATIONS = 100_000
VOLUME = 8.1e12


def main() -> None:
    """Write everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--name", default="scaling", help="names the files")
    given = parser.parse_args()
    result = read_json(given.directory / SCALING_FILE, Scaling, SCALING_SCHEMA)
    RESULTS.mkdir(exist_ok=True)
    plots = _plots(result, given.name)
    pictures = "".join(f"![{escaped(title)}]({path})\n\n" for title, path in plots)
    command = " ".join(result.command)
    head = f"Made by `python docs/results.py` from one run of `{command}`.\n\n"
    text = to_markdown(result)
    first, _, rest = text.partition("\n")
    (RESULTS / f"{given.name}.md").write_text(
        f"{first}\n\n{head}{rest.lstrip()}\n## Plots\n\n{pictures}", encoding="utf-8"
    )
    (RESULTS / f"{given.name}.csv").write_text(to_csv(result.points), encoding="utf-8")
    (RESULTS / "seeds.md").write_text("\n".join([*_seeds(result, head), ""]), encoding="utf-8")


def _plots(result: Scaling, name: str) -> list[tuple[str, str]]:
    """Each drawing as a file of its own; its title and its path beside the pages."""
    part = scaling_part(result)
    drawings = [
        (f"{what} of {group['setting']}", group[what])
        for group in part["groups"]
        for what in ("throughput", "efficiency", "relative")
    ]
    drawings += [(fall["title"], fall["drawing"]) for fall in part["waterfalls"]]
    made = []
    for number, (title, drawing) in enumerate((one for one in drawings if one[1]), start=1):
        path = f"{name}-{number:02d}.svg"
        opening = '<svg xmlns="http://www.w3.org/2000/svg" '
        styled = re.sub(r"^(<svg [^>]*>)", lambda match: match[1] + f"<style>{style_sheet()}</style>", drawing, count=1)
        (RESULTS / path).write_text(styled.replace("<svg ", opening, 1) + "\n", encoding="utf-8")
        made.append((title, path))
    return made


def _seeds(result: Scaling, head: str) -> list[str]:
    points = [point for point in result.points if point.status == "measured" and point.samples_per_s is not None]
    whole = [point for point in points if point.device_indices == tuple(range(point.devices))]
    main_strategy = next((point.strategy for point in whole if point.strategy != "independent"), "independent")
    first = [point for point in whole if point.strategy == main_strategy]
    lines = [
        "# In the form of earlier systems' tables",
        "",
        escaped(words.machine(result.machine)) + ".",
        "",
        head.strip(),
    ]
    lines += [
        "",
        *_images_per_second(whole),
        *_speedups(first),
        *_by_devices(first),
        *_iterations(first),
        *_voxels(points),
    ]
    return lines


def _images_per_second(points: list[ScalePoint]) -> list[str]:
    """Devices down, strategies across, samples per second: a table per workload."""
    lines = ["## Samples per second", ""]
    for setting, members in words.groups(points):
        strategies = list(dict.fromkeys(point.strategy for point in members))
        rows = []
        for devices in sorted({point.devices for point in members}):
            by_name = {point.strategy: point.samples_per_s for point in members if point.devices == devices}
            rows.append([str(devices), *(_figure(by_name.get(name)) for name in strategies)])
        lines += [f"{escaped(setting)}:", "", *table(["devices", *strategies], rows, left=0), ""]
    return lines


def _speedups(points: list[ScalePoint]) -> list[str]:
    """Models down: parameters, speedup, efficiency on the most devices."""
    most = max((point.devices for point in points), default=0)
    last = [point for point in points if point.devices == most and point.speedup is not None]
    rows = [
        (
            point.workload,
            f"{point.parameters or 0:,}",
            f"{point.speedup or 0:.2f}x",
            f"{100 * (point.efficiency or 0):.1f} %",
        )
        for point in last
    ]
    title = f"## Speedup on {most} devices, {points[0].strategy if points else ''}"
    return [title, "", *table(("model", "parameters", "speedup", "efficiency"), rows, left=1), ""]


def _by_devices(points: list[ScalePoint]) -> list[str]:
    """Devices down: median over the models."""
    rows = []
    for devices in sorted({point.devices for point in points if point.devices > 1}):
        speedups = [point.speedup for point in points if point.devices == devices and point.speedup is not None]
        if speedups:
            middle = statistics.median(speedups)
            rows.append((str(devices), f"{middle:.2f}x", f"{100 * middle / devices:.1f} %"))
    return [
        "## Median over the models",
        "",
        *table(("devices", "median speedup", "median efficiency"), rows, left=0),
        "",
    ]


def _iterations(points: list[ScalePoint]) -> list[str]:
    """Iterations per minute, and days for a number of iterations and for as many samples as one device sees in them."""
    rows = []
    for point in points:
        if point.step_ms is None or point.samples_per_s is None:
            continue
        samples = ITERATIONS * point.batch_per_device
        rows.append(
            (
                f"{point.workload} (x{point.devices})",
                str(point.global_batch),
                f"{60e3 / point.step_ms:,.1f}",
                f"{ITERATIONS * point.step_ms / 86.4e6:.2f}",
                f"{samples / point.samples_per_s / 86400:.2f}",
            )
        )
    headings = ("system", "samples per iteration", "iterations per minute", "100k iterations [d]", "their samples [d]")
    note = (
        "An iteration on N devices is N times the samples of one on a single device, so that the time to a number of "
        "iterations says little by itself; the last column is the time to the samples of 100k one-device iterations."
    )
    return ["## Iterations per minute", "", *table(headings, rows, left=1), "", note, ""]


def _voxels(points: Iterable[ScalePoint]) -> list[str]:
    """Written voxels per second, and hours for the volume, where a volume was predicted."""
    rows = []
    for point in points:
        if point.workload != "unet3d-predict" or point.samples_per_s is None:
            continue
        rate = point.samples_per_s * 55 * 575 * 575  # voxels that one block writes
        rows.append((f"{point.devices} devices", f"{rate / 1e6:.1f}", f"{VOLUME / rate / 3600:.1f}"))
    if not rows:
        return []
    return ["## Prediction", "", *table(("system", "Mvox/s, written", "8.1 teravoxels [h]"), rows, left=1), ""]


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


if __name__ == "__main__":
    main()
