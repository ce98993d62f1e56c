"""gpudiag bandwidth beside nvbandwidth and nccl-tests: figures, repeatability and time, on a machine with GPUs.

    python benchmarks/bandwidth_reference.py OUTPUT [--reference FILE.csv] [--runs 2] [--python PATH]

Runs the default and the quick probe, each `--runs` times, and writes to OUTPUT: facts-*.json, page-*.html, log-*.txt,
and comparison.md with seconds, gpudiag beside the reference, and how far two runs lie apart. Where nvbandwidth or
all_reduce_perf are on PATH they are run too (their output is kept beside the rest); else the CSV is the reference.
Exit code 1 when a measure of the project is missed.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpudiag.probing.facts_file import load_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpudiag.model.facts import Facts

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "benchmarks" / "h200x4_reference.csv"
#: The measures: relative difference allowed, and seconds for 4 GPUs.
COPY, COLLECTIVE, SMALL_MESSAGE, REPEAT = 0.02, 0.05, 0.20, 0.02
SECONDS = {"default": 20.0, "quick": 5.0}
PEERS = {
    "nvbandwidth": ["nvbandwidth"],
    "all_reduce_perf": ["all_reduce_perf", "-b", "1K", "-e", "512M", "-f", "2", "-g"],
}


def run_gpudiag(python: str, output: Path, mode: str, number: int) -> tuple[Facts | None, float]:
    """One probe run; its facts, or None where there are none, and seconds of wall time."""
    name = f"{mode}-{number}"
    command = [python, "-m", "gpudiag", "bandwidth", "--save", str(output / f"facts-{name}.json")]
    command += ["--html", str(output / f"page-{name}.html"), *(["--quick"] if mode == "quick" else [])]
    began = time.perf_counter()
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    seconds = time.perf_counter() - began
    (output / f"log-{name}.txt").write_text(f"exit code {finished.returncode}\n{finished.stderr}\n{finished.stdout}")
    path = output / f"facts-{name}.json"
    return (load_facts(path) if path.is_file() else None), seconds


def values_for(facts: Facts, row: dict[str, str]) -> list[float]:
    """gpudiag's figures of a reference row's test, one per GPU or pair."""
    path, size = row["path"], int(row["bytes"])
    if row["direction"] == "collective":
        chosen = [one for one in facts.collectives if one.strategy == path and one.bytes == size]
        return [one.time_us if row["scope"] == "time" else one.busbw_gb_per_s for one in chosen]
    if path.startswith("dependent_load"):
        host = path.endswith("host")
        return [
            one.time_us
            for one in facts.latency
            if one.kind == "dependent_load" and one.src != one.dst and (one.dst == "host") == host
        ]
    return [
        one.gb_per_s / (2 if row["scope"] == "one direction" else 1)
        for one in facts.bandwidth
        if one.path == path
        and one.direction == row["direction"]
        and one.memory in {"pinned", "device"}
        and ("all" in {one.src, one.dst}) == (row["scope"] == "all")
        and (not row["initiator"] or one.initiator == row["initiator"])
        and (not row["peer_access"] or one.peer_access is (row["peer_access"] == "true"))
    ]


def bound_for(row: dict[str, str]) -> float | None:
    """How far gpudiag may lie from this row; None where no measure says so."""
    if row["direction"] == "collective":
        return SMALL_MESSAGE if row["scope"] == "time" else COLLECTIVE
    # A figure of one direction while the other interferes is not half of what both carry together.
    return None if row["scope"] == "one direction" or row["unit"] == "us" else COPY


def compare(facts: Facts, rows: list[dict[str, str]]) -> Iterator[tuple[str, bool]]:
    """Lines of the table beside the reference, and whether each is within its bound."""
    for row in rows:
        found = values_for(facts, row)
        name = f"{row['tool']} {row['test']}" + (
            f" {int(row['bytes']) >> 10} KiB" if row["direction"] == "collective" else ""
        )
        expected, bound = float(row["value"]), bound_for(row)
        if not found:
            yield f"| {name} | {expected:g} | not measured | | |", bound is None
            continue
        value = statistics.median(found)
        away, allowed = value / expected - 1, "" if bound is None else f"{100 * bound:.0f} %"
        fine = bound is None or abs(away) <= bound
        verdict = "yes" if bound is not None and fine else "" if bound is None else "**no**"
        spread = f"{value:.4g} ({min(found):.4g} to {max(found):.4g})"
        yield (
            f"| {name} ({row['unit']}) | {expected:g} | {spread} | {100 * away:+.1f} % of {allowed} | {verdict} |",
            fine,
        )


def repeatability(first: Facts, second: Facts) -> Iterator[tuple[float, str, bool]]:
    """How far each figure of two runs lies apart, what it is, and whether a link makes it; furthest apart first.

    A link's figure (pinned, peer and on-device copies, NCCL from 1 MiB on) has to come again. What the host's cores
    make (pageable copies, gloo, launching small messages) varies with what else they do.
    """

    def figures(facts: Facts) -> dict[tuple[object, ...], tuple[float, bool]]:
        found: dict[tuple[object, ...], tuple[float, bool]] = {}
        for one in facts.bandwidth:
            key = (one.path, one.src, one.dst, one.memory, one.direction, one.peer_access, one.initiator)
            found[key] = (one.gb_per_s, one.memory != "pageable")
        for measured in facts.collectives:
            of_link = measured.strategy.startswith("nccl") and measured.bytes >= 1 << 20
            found[measured.strategy, f"{measured.bytes >> 10} KiB"] = (measured.busbw_gb_per_s, of_link)
        return found

    a, b = figures(first), figures(second)
    apart = [(abs(b[key][0] / a[key][0] - 1), " ".join(map(str, key)), a[key][1]) for key in a if key in b]
    yield from sorted(apart, reverse=True)


def phases(facts: Facts) -> Iterator[str]:
    """Lines saying where the seconds went, probe by probe."""
    yield "| probe | status | loading | measuring | of which |"
    yield "| --- | --- | --- | --- | --- |"
    for name, how in facts.probes.items():
        if "status" in how:
            inside = ", ".join(f"{what} {seconds:.2f}" for what, seconds in how.get("phases_s", {}).items())
            yield f"| {name} | {how['status']} | {how['setup_s']} | {how['measure_s']} | {inside} |"
    total = facts.probes.get("total", {})
    yield ""
    yield "whole: " + ", ".join(f"{name} {value}" for name, value in total.items())


def small_messages(facts: Facts) -> Iterator[str]:
    """NCCL's small messages in us: launched one by one as nccl-tests does, and queued, without launching."""
    names = ("nccl", "nccl-queued", "nccl-no-p2p", "nccl-no-p2p-queued")
    times = {(one.strategy, one.bytes): one.time_us for one in facts.collectives}
    yield "| us | " + " | ".join(names) + " |"
    yield "| --- |" + " --- |" * len(names)
    for size in sorted({size for name, size in times if name in names and size <= 1 << 20}):
        cells = [f"{times[name, size]:.1f}" if (name, size) in times else "" for name in names]
        yield f"| {size >> 10} KiB | " + " | ".join(cells) + " |"


def main() -> int:
    """Measure, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--reference", type=Path, default=REFERENCE)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    rows = list(csv.DictReader(options.reference.open()))
    runs = {
        mode: [run_gpudiag(options.python, options.output, mode, number) for number in range(options.runs)]
        for mode in ("default", "quick")
    }
    lines, fine = ["| mode | seconds | at most |", "| --- | --- | --- |"], True
    for mode, results in runs.items():
        shown = ", ".join(f"{seconds:.1f}" for _, seconds in results)
        lines.append(f"| {mode} | {shown} | {SECONDS[mode]:g} |")
        fine = fine and max(seconds for _, seconds in results) <= SECONDS[mode]
    measured = {mode: [facts for facts, _ in results if facts is not None] for mode, results in runs.items()}
    for mode, found in measured.items():
        if not found:
            lines += ["", f"{mode}: no facts were written, see log-{mode}-0.txt"]
            fine = False
            continue
        lines += [
            "",
            f"{mode}, last run",
            "",
            "| test | reference | gpudiag | apart | within |",
            "| --- | --- | --- | --- | --- |",
        ]
        for line, within in compare(found[-1], rows):
            if mode == "quick" and "not measured" in line:
                continue
            lines.append(line)
            fine = fine and within
        lines += ["", f"{mode}: seconds per probe", "", *phases(found[-1])]
        lines += ["", f"{mode}: small all-reduces", "", *small_messages(found[-1]), ""]
        lines += [f"- not measured: {one.what}: {one.why}" for one in found[-1].skipped]
        if len(found) > 1:
            apart = list(repeatability(found[-2], found[-1]))
            links = [away for away, _, of_link in apart if of_link]
            close, all_close = sum(away <= REPEAT for away in links), sum(away <= REPEAT for away, *_ in apart)
            # One figure in fifty may meet a burst of the neighbours' traffic.
            fine = fine and close >= 0.98 * len(links)
            agreed = f"{close} of {len(links)} figures of links agree within {100 * REPEAT:.0f} % between two runs"
            half = f"half of them within {100 * statistics.median(links):.2f} %"
            lines += ["", f"{mode}: {agreed}, {half}; {all_close} of all {len(apart)}. Furthest apart:", ""]
            lines += [f"- {100 * away:.1f} % {what}" for away, what, of_link in apart if of_link][:10]
            lines += [f"- {100 * away:.1f} % {what} (host)" for away, what, of_link in apart if not of_link][:8]
    for program, command in PEERS.items():
        if shutil.which(program):
            gpus = max((len(found[0].gpus) for found in measured.values() if found), default=1)
            call = [*command, str(gpus)] if program == "all_reduce_perf" else command
            began = time.perf_counter()
            text = subprocess.run(call, capture_output=True, text=True, check=False).stdout
            (options.output / f"{program}.txt").write_text(f"{time.perf_counter() - began:.1f} s\n{text}")
    text = "\n".join(lines) + "\n"
    (options.output / "comparison.md").write_text(text)
    print(text)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
