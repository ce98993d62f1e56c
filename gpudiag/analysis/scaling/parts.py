"""Break down a step's time by simulating the recorded steps without the profiler's cost.

Recorded steps take up to twice as long as unprofiled ones. The profiler slows the ranks' hosts unequally, so that ranks
wait for each other, and waiting collectives slow concurrent kernels. Therefore the parts are not read off the trace.
The steps are simulated without the profiler's cost per event, which is fitted to the unprofiled step time. Then the
causes are removed in sequence, and the resulting reduction of the step time is the part of that cause:

    as timed                                                            40 ms
    no rank later than the others, in any step         waiting           38
    transfers take no time                             exposed transfer  31
    concurrent kernels are contention-free             disturbed         30
    no waiting for data                                input             30
    calls on the host take no time                     launch            28
    the device's kernels remain                        compute

The parts add up to the simulated step by construction. A difference of a few percent to the timed step remains. If no
cost of the profiler explains the recorded steps' length (on a busy machine, or with a library that stays slow once the
profiler was loaded), the parts are scaled to the timed step and the factor is stored. On CPUs all parts are scaled,
because all work shares the cores. On GPUs only the parts caused by the host or by peers are scaled; kernels are not.
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
from gpudiag.analysis.diagnosis.simulation.graph import Scenario
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf, build_what_if
from gpudiag.model.benchmarks.scaling import STEP_PARTS, StepParts
from gpudiag.model.timeline import Timeline
from gpudiag.units import milliseconds

#: Largest relative difference between the simulated and the timed step at which the parts are not scaled.
_NEAR = 0.03
_OF_THE_HOST = ("waiting", "exposed_transfer", "input", "launch")


def step_parts(timeline: Timeline, timed_ms: float, *, staged: bool = False, fed: bool = True) -> StepParts | None:
    """Break down a step that takes `timed_ms` without the profiler; None if it cannot be simulated.

    Args:
        timeline: the job's recorded steps.
        timed_ms: mean time of the same job's unprofiled steps.
        staged: gradients are communicated through host memory. Copies to and from it, and waiting for the threads that
            reduce them, then count as transfer.
        fed: the job loads batches. If it does not, unexplained waiting counts as host time.
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
    if not on_cpu:  # on CPUs the host's calls are the training itself
        costs = without_launch_cost(what_if, _never_waits(what_if, costs))
        costs = without_syncs(what_if, costs)
    chain["launch"] = costs
    steps_ms = what_if.each_step_ms([chain[name] for name in ("", *STEP_PARTS[:-1])])
    # Removing a cause cannot cost time; a negative part is an inaccuracy of the simulation.
    steps_ms = list(itertools.accumulate(steps_ms, min))
    lengths = [before - after for before, after in itertools.pairwise([*steps_ms, 0.0])]
    parts_ms = dict(zip(STEP_PARTS, lengths, strict=True))
    scale = scale_to_timed(parts_ms, timed_ms, on_cpu=on_cpu)
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


def scale_to_timed(parts_ms: Mapping[str, float], timed_ms: float, *, on_cpu: bool) -> float:
    """Return the factor that scales the parts to the timed step; 1 if their sum is near it or nothing can be scaled.

    Worked example, on a GPU: 15 ms of kernels, 15 of launching and 9 of transfers simulated, 22 timed. The excess of 17
    of 39 ms is removed from the 24 ms that are not kernels: 7 remain, 0.29 of each.
    """
    whole = sum(parts_ms.values())
    if on_cpu:
        return timed_ms / whole if whole > 0 and abs(whole - timed_ms) > _NEAR * timed_ms else 1.0
    if whole - timed_ms <= _NEAR * timed_ms:
        return 1.0
    movable = sum(parts_ms[name] for name in _OF_THE_HOST)
    return max(0.0, movable - (whole - timed_ms)) / movable if movable > 0 else 1.0


def _transfer_ms(what_if: WhatIf, costs: Scenario) -> float:
    """Return the transfer time of a step on the mean device."""
    graph = what_if.graph
    devices = len(set(graph.device.track.tolist()))
    return milliseconds(float(np.nansum(costs.transfer))) / max(graph.steps * devices, 1)


def _never_waits(what_if: WhatIf, costs: Scenario) -> Scenario:
    return without_untraced(what_if, without_input(what_if, costs))
