"""What a step's time consists of, from the replay of recorded steps without the profiler's cost.

Recorded steps take up to twice as long as unrecorded ones, and not only on the host: ranks that the profiler slows
differently wait for each other, and collectives that wait slow the kernels beside them. So nothing is read off the
recording. It is replayed with the profiler's cost taken out, which is chosen such that the replay takes as long as the
steps that were timed without it; then one cause after the other is taken away in the replay, and what the step gets
shorter by is that cause's part:

    as timed                                                            40 ms
    no rank later than the others, in any step         waiting           38
    transfers take no time                             exposed transfer  31
    kernels beside them are undisturbed                disturbed         30
    no waiting for data                                input             30
    calls on the host take no time                     launch            28
    what is left are the device's kernels              compute

The parts add up to the replayed step by construction. By how much that differs from the timed one is kept, up to a few
percent. Where the recorded steps were slower than the timed ones by more than any cost of the profiler explains (a busy
machine, a library that stays slow once the profiler was loaded), the parts are scaled to the timed step, and the factor
is kept too: on CPUs all of them, whose cores are shared by everything; on GPUs those that the host causes or peers wait
for, since kernels take what they take.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gpudiag.analysis.diagnosis.simulation.counterfactuals import (
    equalize_ranks,
    with_host_copies,
    without_input,
    without_launch_cost,
    without_syncs,
    without_transfer_time,
    without_untraced,
)
from gpudiag.analysis.diagnosis.simulation.fit_profiler_cost import build_what_if
from gpudiag.analysis.diagnosis.simulation.scenario import Scenario
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.benchmarks.scaling import STEP_PARTS, StepParts
from gpudiag.model.timeline import Timeline
from gpudiag.units import milliseconds

#: Replays come this near to the timed step; beyond it the recorded steps were other steps.
_NEAR = 0.03
_OF_THE_HOST = ("waiting", "exposed_transfer", "input", "launch")


def step_parts(timeline: Timeline, timed_ms: float, *, staged: bool = False, fed: bool = True) -> StepParts | None:
    """The parts of a step that takes `timed_ms` without the profiler; None where nothing can be replayed.

    Args:
        timeline: recorded steps of the job.
        timed_ms: mean of the same job's steps, timed unrecorded.
        staged: gradients are exchanged through the host's memory, so that copies to and from it, and waiting for the
            threads that reduce them, are transfer.
        fed: batches come from somewhere; otherwise waiting that nothing else explains is the host's.
    """
    what_if = build_what_if(timeline, timed_ms)
    if what_if is None:
        return None
    on_cpu = timeline.tracks[0].is_cpu
    chain = dict.fromkeys(("", *STEP_PARTS), what_if.corrected)
    costs = what_if.corrected
    if len(what_if.graph.ranks) > 1:
        costs = equalize_ranks(what_if, costs, each_step=True)
    chain["waiting"] = costs
    costs = without_transfer_time(costs)
    if staged and not on_cpu:
        costs = with_host_copies(what_if, costs)
        costs = costs if fed else _never_waits(what_if, costs)
    chain["exposed_transfer"] = costs
    costs = replace(costs, duration=what_if.model.contention.removed_from(costs.duration))
    chain["disturbed"] = costs
    if fed:
        costs = _never_waits(what_if, with_host_copies(what_if, costs))
    chain["input"] = costs
    if not on_cpu:  # where the host's calls are the training itself
        costs = without_launch_cost(what_if, _never_waits(what_if, costs))
        costs = without_syncs(what_if, costs)
    chain["launch"] = costs
    steps_ms = what_if.each_step_ms([chain[name] for name in ("", *STEP_PARTS[:-1])])
    # Taking something away never costs time; where the replay says so it is its own inaccuracy.
    steps_ms = list(itertools.accumulate(steps_ms, min))
    lengths = [before - after for before, after in itertools.pairwise([*steps_ms, 0.0])]
    parts_ms = dict(zip(STEP_PARTS, lengths, strict=True))
    scale = factor(parts_ms, timed_ms, on_cpu=on_cpu)
    return StepParts(
        timed_ms=timed_ms,
        replayed_ms=steps_ms[0],
        recorded_ms=what_if.simulated_ms,
        profiler_us_per_event=what_if.per_event_ns / 1e3,
        parts_ms={name: ms * scale if on_cpu or name in _OF_THE_HOST else ms for name, ms in parts_ms.items()},
        scaled_by=scale,
        on_cpu=on_cpu,
        hidden_communication_ms=max(0.0, _transfer_ms(what_if, what_if.corrected) - lengths[1]),
    )


def factor(parts_ms: Mapping[str, float], timed_ms: float, *, on_cpu: bool) -> float:
    """What the parts are multiplied by so that their sum is the timed step; 1 where it nearly is, or where they cannot.

    Worked example, on a GPU: 15 ms of kernels, 15 of launching and 9 of transfers between hosts replayed, 22 timed. 17
    of 39 ms never were in the timed step; of the 24 that are not kernels 7 stay, 0.29 of each.
    """
    whole = sum(parts_ms.values())
    if on_cpu:
        return timed_ms / whole if whole > 0 and abs(whole - timed_ms) > _NEAR * timed_ms else 1.0
    if whole - timed_ms <= _NEAR * timed_ms:
        return 1.0
    movable = sum(parts_ms[name] for name in _OF_THE_HOST)
    return max(0.0, movable - (whole - timed_ms)) / movable if movable > 0 else 1.0


def _transfer_ms(what_if: WhatIf, costs: Scenario) -> float:
    """Transfers of a step on the mean device."""
    graph = what_if.graph
    devices = len(set(graph.device.track.tolist()))
    return milliseconds(float(np.nansum(costs.transfer))) / max(graph.steps * devices, 1)


def _never_waits(what_if: WhatIf, costs: Scenario) -> Scenario:
    return without_untraced(what_if, without_input(what_if, costs))
