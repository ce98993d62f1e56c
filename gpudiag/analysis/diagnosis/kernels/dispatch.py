"""Find the time in which JAX's main thread dispatches functions to CPU devices that run no function."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.kernels.recompilation import compiling_share, ns_before_nodes
from gpudiag.analysis.diagnosis.simulation.graph import Scenario, Times
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.intervals import EMPTY, Intervals, distinct, lengths_inside, subtract, union
from gpudiag.model.event import Role
from gpudiag.model.timeline import DeviceTrack
from gpudiag.units import NS_PER_MS


def dispatching_share(case: Case, what_if: WhatIf) -> Times | None:
    """Return float64[n]: share of dispatching in the work before each host node; None if no thread dispatches to CPUs.

    Compiling does not count.
    """
    graph = what_if.graph
    spans = {track.trace: _dispatching(track) for track in case.tracks if _dispatches(case, track)}
    # The share is one of busy time, without waiting, because dispatching is busy time.
    share = np.clip(ns_before_nodes(graph, spans) / np.maximum(graph.host.busy, 1.0), 0.0, 1.0)
    compiling = compiling_share(case, what_if)
    if compiling is not None:
        share *= 1.0 - compiling
    return share if share.any() else None


def without_dispatching(remaining: Times, _: WhatIf, scenario: Scenario) -> Scenario:
    """Return the scenario with the share `remaining`, float64[n], of the work before each host node."""
    return replace(scenario, busy=scenario.busy * remaining)


def dispatches_per_step(case: Case) -> tuple[float, float]:
    """Return (functions that the first device ran, ms of dispatching in which it ran no function), per step."""
    track = case.tracks[0]
    steps = max(len(track.window_steps), 1)
    ran = distinct(track.ops.row[(track.ops.start >= track.bounds[0]) & (track.ops.start < track.bounds[-1])])
    inside = lengths_inside(_dispatching(track), track.bounds[:1], track.bounds[-1:])
    return len(ran) / steps, float(inside[0]) / steps / NS_PER_MS


def _dispatches(case: Case, track: DeviceTrack) -> bool:
    """Return whether a CPU track's main thread launches work that other threads run."""
    events = case.timeline.traces[track.trace].events
    return track.is_cpu and bool(((events.role == Role.LAUNCH) & (events.thread == track.steps.thread)).any())


def _dispatching(track: DeviceTrack) -> Intervals:
    """Return the times in which the main thread works while its device runs no function and no collective."""
    thread = track.threads.get(track.steps.thread)
    ran = union(Intervals(track.ops.start, track.ops.end), Intervals(track.collectives.start, track.collectives.end))
    return EMPTY if thread is None else subtract(thread.busy, ran)
