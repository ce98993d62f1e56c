"""Measure time and memory of the what-if simulation for jobs of growing size, made by repeating real traces.

    python benchmarks/bench_simulation.py [TRACES] [--events-per-step N] [--rounds N]

The analysed steps of each rank's trace are concatenated until the trace has enough steps. Only every n-th step mark is
kept, so that a step has about the requested number of events. Graph construction, one simulation, and the whole
diagnosis (every rule and scenario) are measured in one process. Memory is the peak allocated by Python and NumPy.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.analysis.diagnosis.simulation.build import build_graph
from gpudiag.analysis.diagnosis.simulation.graph import recorded_scenario
from gpudiag.analysis.diagnosis.simulation.simulate import System, simulate
from gpudiag.analysis.timeline import build_timeline
from gpudiag.model.event import NO_CORRELATION, EventTable, Role, StepMarks, Trace
from gpudiag.trace import read_traces

if TYPE_CHECKING:
    from gpudiag.model.timeline import Timeline

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Measure and print one row per size."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("traces", nargs="?", type=Path, default=ROOT / "tests" / "traces" / "clean")
    options.add_argument("--events-per-step", type=int, default=14_000)
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    timeline = build_timeline(read_traces([given.traces]))
    print("| ranks | steps | events per step | events | graph, schedule s | one simulation s | diagnosis s | peak MB |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for steps in (5, 10, 20):
        print(row(timeline, steps, given.events_per_step, given.rounds), flush=True)
    return 0


def row(timeline: Timeline, steps: int, events_per_step: int, rounds: int) -> str:
    """Return the table row for traces with `steps` analysed steps, with medians over the rounds."""
    # Two more steps than are analysed are needed, because the first and the last step of a recording are excluded.
    traces = tuple(repeated(timeline, index, steps + 2, events_per_step) for index in range(len(timeline.traces)))
    events = sum(len(trace.events) for trace in traces)
    grown = build_timeline(traces)
    attribution = attribute(grown)
    building, simulating, diagnosing = [], [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        graph = build_graph(grown)
        assert graph is not None
        system = System(graph)
        built = time.perf_counter()
        simulate(system, system.weights(recorded_scenario(graph)))
        simulated = time.perf_counter()
        diagnose(Case(timeline=grown, attribution=attribution))
        building.append(built - begin)
        simulating.append(simulated - built)
        diagnosing.append(time.perf_counter() - simulated)
    tracemalloc.start()  # only after the timed rounds, because it slows the code
    diagnose(Case(timeline=grown, attribution=attribution))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    analysed = min(len(track.window_steps) for track in grown.tracks)
    times = " | ".join(f"{statistics.median(values):.2f}" for values in (building, simulating, diagnosing))
    per_step = events / len(traces) / (steps + 2)
    return f"| {len(traces)} | {analysed} | {per_step:,.0f} | {events:,} | {times} | {peak / 1e6:.0f} |"


def repeated(timeline: Timeline, index: int, steps: int, events_per_step: int) -> Trace:
    """Return the trace `index` with `steps` steps, each made of as many original steps as `events_per_step` requires.

    The analysed part of the trace is copied several times in a row, and only every n-th step mark is kept.
    """
    trace = timeline.traces[index]
    track = next(track for track in timeline.tracks if track.trace == index)
    events = trace.events
    first = int(np.searchsorted(track.steps.number, track.window_steps[0]))
    after = int(np.searchsorted(track.steps.number, track.window_steps[-1])) + 1
    step_count = after - first
    # `shift_ns` aligned the track's clock with other ranks, and the trace's own times are not aligned.
    begin, end = (int(track.steps.start[at]) - track.shift_ns for at in (first, min(after, len(track.steps) - 1)))
    on_host = events.device < 0
    # Copy the host events of the analysed steps, and the device work that they launched.
    body = on_host & (events.start_ns >= begin) & (events.start_ns < end)
    launched = np.unique(events.correlation[body & (events.correlation != NO_CORRELATION)])
    body |= ~on_host & np.isin(events.correlation, launched)
    rows = np.flatnonzero(body)
    marks = (events.role[rows] == Role.STEP_MARK) & (events.start_ns[rows] >= begin)
    per_step = max(round(events_per_step * step_count / len(rows)), 1)  # original steps per new step
    copies = -(-steps * per_step // step_count)  # rounded up
    length, stride = end - begin, int(events.correlation.max()) + 1  # a copy's shift of times and of correlation ids
    names = list(events.names)
    parts: dict[str, list[np.ndarray]] = {name: [] for name in events.columns()}
    calls = []
    numbers: list[int] = []
    offset = 0
    for copy in range(copies):
        number = copy * step_count + np.arange(int(marks.sum()))
        keep = np.ones(len(rows), np.bool_)
        keep[np.flatnonzero(marks)] = number % per_step == 0  # all events, but only every n-th step mark
        chosen = rows[keep]
        table = {name: column[chosen].copy() for name, column in events.columns().items()}
        for column in ("start_ns", "end_ns"):
            table[column] += copy * length
        table["correlation"] = np.where(
            table["correlation"] == NO_CORRELATION, NO_CORRELATION, table["correlation"] + copy * stride
        )
        for at, which in zip(np.flatnonzero(marks[keep]), number[number % per_step == 0] // per_step, strict=True):
            table["name"][at] = len(names)
            names.append(f"ProfilerStep#{which}")
            numbers.append(which)
        new_rows = dict(zip(chosen.tolist(), range(offset, offset + len(chosen)), strict=True))
        # Copies would repeat the sequence numbers of collectives.
        calls += [
            replace(call, row=new_rows[call.row], sequence=None) for call in trace.collectives if call.row in new_rows
        ]
        for field, pieces in parts.items():
            pieces.append(table[field])
        offset += len(chosen)
    columns = {name: np.concatenate(parts[name]) for name in parts}
    order = np.lexsort((-columns["end_ns"], columns["start_ns"]))  # by start; an enclosing event before its parts
    sorted_row = np.argsort(order)
    events = EventTable(names=tuple(names), **{name: column[order] for name, column in columns.items()})
    marked = np.flatnonzero(events.role == Role.STEP_MARK)
    return replace(
        trace,
        events=events,
        step_marks=(StepMarks(source="ProfilerStep", row=marked, number=np.array(numbers, np.int64)),),
        collectives=tuple(replace(call, row=int(sorted_row[call.row])) for call in calls),
    )


if __name__ == "__main__":
    sys.exit(main())
