"""Compare the figures, repeatability and time of `gpudiag bandwidth` with nvbandwidth and nccl-tests on GPUs.

    python benchmarks/bandwidth_reference.py OUTPUT [--reference FILE.csv] [--runs 2] [--python PATH]

Run the default and the quick probe `--runs` times each. Write facts-*.json, page-*.html, log-*.txt and comparison.md to
OUTPUT. comparison.md contains durations, the comparison with the reference, and the differences between two runs. If
nvcc and NCCL's header are available, the C++ programs in `peers/` measure the reference on the same machine, before and
after each run of gpudiag. The programs use the methods of nvbandwidth and nccl-tests. Without nvcc the reference is the
CSV: results of nvbandwidth and nccl-tests on another machine of the same kind. Exit with code 1 if a requirement of the
project is missed.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpudiag.machine.facts_file import load_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpudiag.model.facts import Facts

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "benchmarks" / "h200x4_reference.csv"
#: Requirements of the project: allowed relative differences, and the time of each probe on 4 GPUs in seconds.
COPY, COLLECTIVE, SMALL_MESSAGE, REPEAT = 0.02, 0.05, 0.20, 0.02
SECONDS = {"default": 20.0, "quick": 5.0}
PEERS = Path(__file__).resolve().parent / "peers"
ALL_REDUCE_BYTES = ("65536", "33554432", "268435456")
#: The runs of programs in `peers/` in one round: (program, arguments, environment, name of its all-reduces in the CSV).
PEER_RUNS: tuple[tuple[str, tuple[str, ...], dict[str, str], str], ...] = (
    ("copies", (), {}, ""),
    ("all_reduce", ALL_REDUCE_BYTES, {}, "all_reduce_perf"),
    ("all_reduce", ("134217728",), {"NCCL_P2P_DISABLE": "1"}, "all_reduce_perf NCCL_P2P_DISABLE=1"),
)
#: Results of one round of peers: (test, bytes) → one figure per GPU or pair. For copies, `bytes` is 0.
PeerFigures = dict[tuple[str, int], list[float]]


def build_peers(output: Path) -> bool:
    """Compile the programs in `peers/` into `output`; return False if nvcc or NCCL's header is missing."""
    nccl = next((place for place in nccl_places() if (place / "include" / "nccl.h").is_file()), None)
    if shutil.which("nvcc") is None or nccl is None:
        return False
    compile_it = ["nvcc", "-O2", "-std=c++17", "-I", str(nccl / "include")]
    library = nccl / "lib" / "libnccl.so.2"
    for name, link in (("copies", []), ("all_reduce", ["-Xlinker", f"{library},-rpath={library.parent}"])):
        subprocess.run([*compile_it, "-o", str(output / name), str(PEERS / f"{name}.cu"), *link], check=True)
    return True


def nccl_places() -> Iterator[Path]:
    """Yield the directories that may contain NCCL: the one in PyTorch's wheel, and then the system's directories."""
    for place in sys.path:
        yield Path(place) / "nvidia" / "nccl"
    yield Path("/usr")


def run_peers(output: Path, number: int) -> PeerFigures:
    """Run the programs in `peers/` once, save their output, and return their figures."""
    figures: PeerFigures = {}
    printed = ""
    for program, arguments, variables, collective in PEER_RUNS:
        # As in gpudiag's probe, NVLink multicast is off, because it can exceed the rate of a link.
        environment = {"NCCL_NVLS_ENABLE": "0", **os.environ, **variables}
        finished = subprocess.run(
            [str(output / program), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        printed += f"{program} {' '.join(arguments)} {variables}: exit code {finished.returncode}\n"
        printed += finished.stdout + finished.stderr
        for line in finished.stdout.splitlines():
            # A line of `all_reduce` is (bytes, µs, busbw in GB/s), and a line of `copies` is (test, GPUs, GB/s).
            fields = line.split()
            if len(fields) != 3:
                continue
            if collective:
                size, microseconds, busbw = int(fields[0]), float(fields[1]), float(fields[2])
                # For the small message, which latency limits, the time is compared.
                figures.setdefault((collective, size), []).append(microseconds if size == 65536 else busbw)
            else:
                figures.setdefault((fields[0], 0), []).append(float(fields[2]))
    (output / f"peers-{number}.txt").write_text(printed)
    return figures


def with_peers(rows: list[dict[str, str]], rounds: list[PeerFigures]) -> list[dict[str, str]]:
    """Return the reference rows; means of `rounds`, measured on this machine, replace values of the other machine."""
    local = []
    for row in rows:
        key = (row["test"], int(row["bytes"]) if row["direction"] == "collective" else 0)
        figures = [statistics.median(record[key]) for record in rounds if key in record]
        if figures:
            spread = f" (C++ here, {min(figures):.4g} to {max(figures):.4g})"
            tool = row["tool"] + ("'s method" + spread)
            local.append({**row, "tool": tool, "value": f"{statistics.fmean(figures):.5g}"})
        else:
            local.append(row)
    return local


def run_gpudiag(python: str, output: Path, mode: str, number: int) -> tuple[Facts | None, float]:
    """Run one probe; return its facts (None if it produced none) and its wall time in seconds."""
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
    """Return gpudiag's figures for the test of a reference row, one per GPU or pair.

    An empty `initiator` or `peer_access` of the row matches any value. For the scope `one direction`, the total of both
    directions is halved.
    """
    path, size = row["path"], int(row["bytes"])
    if row["direction"] == "collective":
        chosen = [
            collective for collective in facts.collectives if collective.strategy == path and collective.bytes == size
        ]
        return [record.time_us if row["scope"] == "time" else record.busbw_gb_per_s for record in chosen]
    if path.startswith("dependent_load"):  # a GPU's loads from its own memory have no reference
        host = path.endswith("host")
        return [
            measured.time_us
            for measured in facts.latency
            if measured.kind == "dependent_load" and measured.src != measured.dst and (measured.dst == "host") == host
        ]
    return [
        rate.gb_per_s / (2 if row["scope"] == "one direction" else 1)
        for rate in facts.bandwidth
        if rate.path == path
        and rate.direction == row["direction"]
        and rate.memory in {"pinned", "device"}
        and ("all" in {rate.src, rate.dst}) == (row["scope"] == "all")
        and (not row["initiator"] or rate.initiator == row["initiator"])
        and (not row["peer_access"] or rate.peer_access is (row["peer_access"] == "true"))
    ]


def bound_for(row: dict[str, str]) -> float | None:
    """Return the allowed relative difference for a reference row, or None if there is no requirement."""
    if row["direction"] == "collective":
        return SMALL_MESSAGE if row["scope"] == "time" else COLLECTIVE
    # Copies in both directions at once have no requirement: half of their total is not the bandwidth of one direction.
    return None if row["scope"] == "one direction" or row["unit"] == "us" else COPY


def compare(facts: Facts, rows: list[dict[str, str]]) -> Iterator[tuple[str, bool]]:
    """Yield (line of the comparison table, True if its difference is within the bound or there is no bound).

    A figure with a bound that was not measured counts as outside.
    """
    for row in rows:
        figures = values_for(facts, row)
        name = f"{row['tool']} {row['test']}" + (
            f" {int(row['bytes']) >> 10} KiB" if row["direction"] == "collective" else ""
        )
        expected, bound = float(row["value"]), bound_for(row)
        if not figures:
            yield f"| {name} | {expected:g} | not measured | | |", bound is None
            continue
        value = statistics.median(figures)
        away, allowed = value / expected - 1, "" if bound is None else f"{100 * bound:.0f} %"
        fine = bound is None or abs(away) <= bound
        verdict = "yes" if bound is not None and fine else "" if bound is None else "**no**"
        spread = f"{value:.4g} ({min(figures):.4g} to {max(figures):.4g})"
        yield (
            f"| {name} ({row['unit']}) | {expected:g} | {spread} | {100 * away:+.1f} % of {allowed} | {verdict} |",
            fine,
        )


def repeatability(first: Facts, second: Facts) -> Iterator[tuple[float, str, bool]]:
    """Yield (relative difference between two runs, name, is a link figure) for each figure, largest difference first.

    Link figures (pinned, peer and on-device copies, NCCL from 1 MiB on) must be repeatable. Figures limited by host
    cores (pageable copies, gloo, launches of small messages) vary with other load.
    """

    def figures(facts: Facts) -> dict[tuple[object, ...], tuple[float, bool]]:
        """Return (key of a figure) → (value, is a link figure) for one run."""
        figures: dict[tuple[object, ...], tuple[float, bool]] = {}
        for record in facts.bandwidth:
            key = (
                record.path,
                record.src,
                record.dst,
                record.memory,
                record.direction,
                record.peer_access,
                record.initiator,
            )
            figures[key] = (record.gb_per_s, record.memory != "pageable")
        for measured in facts.collectives:
            of_link = measured.strategy.startswith("nccl") and measured.bytes >= 1 << 20
            figures[measured.strategy, f"{measured.bytes >> 10} KiB"] = (measured.busbw_gb_per_s, of_link)
        return figures

    a, b = figures(first), figures(second)
    apart = [(abs(b[key][0] / a[key][0] - 1), " ".join(map(str, key)), a[key][1]) for key in a if key in b]
    yield from sorted(apart, reverse=True)


def phases(facts: Facts) -> Iterator[str]:
    """Yield a line with the duration of each probe."""
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
    """Yield a table of NCCL's times in µs for small messages, launched one by one as in nccl-tests, and queued."""
    names = ("nccl", "nccl-queued", "nccl-no-p2p", "nccl-no-p2p-queued")
    times = {(collective.strategy, collective.bytes): collective.time_us for collective in facts.collectives}
    yield "| us | " + " | ".join(names) + " |"
    yield "| --- |" + " --- |" * len(names)
    for size in sorted({size for name, size in times if name in names and size <= 1 << 20}):
        cells = [f"{times[name, size]:.1f}" if (name, size) in times else "" for name in names]
        yield f"| {size >> 10} KiB | " + " | ".join(cells) + " |"


def main() -> int:
    """Measure, compare, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--reference", type=Path, default=REFERENCE)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    rows = list(csv.DictReader(options.reference.open()))
    peers = build_peers(options.output)
    # The programs in `peers/` run before and after every run of gpudiag, so that other load affects both equally.
    rounds = [run_peers(options.output, 0)] if peers else []
    runs: dict[str, list[tuple[Facts | None, float]]] = {"default": [], "quick": []}
    for number in range(options.runs):
        for mode, results in runs.items():
            results.append(run_gpudiag(options.python, options.output, mode, number))
            if peers:
                rounds.append(run_peers(options.output, len(rounds)))
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
        # Compare each mode's last run with the rounds of `peers/` before and after it.
        here = len(rounds) - 2 if mode == "quick" else len(rounds) - 3
        for line, within in compare(found[-1], with_peers(rows, rounds[here : here + 2])):
            if mode == "quick" and "not measured" in line:  # the quick probe omits tests on purpose
                continue
            lines.append(line)
            fine = fine and within
        lines += ["", f"{mode}: seconds per probe", "", *phases(found[-1])]
        lines += ["", f"{mode}: small all-reduces", "", *small_messages(found[-1]), ""]
        lines += [f"- not measured: {probe.what}: {probe.why}" for probe in found[-1].skipped]
        if len(found) > 1:
            apart = list(repeatability(found[-2], found[-1]))
            links = [away for away, _, of_link in apart if of_link]
            close, all_close = sum(away <= REPEAT for away in links), sum(away <= REPEAT for away, *_ in apart)
            # 98 of 100 figures of links suffice, because a burst of other traffic may disturb a figure.
            fine = fine and close >= 0.98 * len(links)
            agreed = f"{close} of {len(links)} figures of links agree within {100 * REPEAT:.0f} % between two runs"
            half = f"half of them within {100 * statistics.median(links):.2f} %"
            lines += ["", f"{mode}: {agreed}, {half}; {all_close} of all {len(apart)}. Furthest apart:", ""]
            lines += [f"- {100 * away:.1f} % {what}" for away, what, of_link in apart if of_link][:10]
            lines += [f"- {100 * away:.1f} % {what} (host)" for away, what, of_link in apart if not of_link][:8]
    text = "\n".join(lines) + "\n"
    (options.output / "comparison.md").write_text(text)
    print(text)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
