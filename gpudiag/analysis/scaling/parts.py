"""Break down a step's time by simulating the recorded steps without the profiler's cost.

The parts are not read from the trace, because recorded steps take up to twice as long as unprofiled steps. The profiler
slows the ranks' hosts unequally, so that ranks wait for each other, and waiting collectives slow concurrent kernels.
Instead, the steps are simulated without the profiler's cost per event, which is fitted so that the simulated step takes
as long as the unprofiled step. Then causes are removed one after another, and each cause's part is the step time that
its removal saves:

    removed                                            part              step afterwards
    nothing                                                              40 ms
    differences between the ranks, in each step        waiting           38
    the time of transfers                              exposed transfer  31
    contention of kernels with communication           disturbed         30
    waiting for data                                   input             30
    the time of calls on the host                      launch            28
    the device's kernels, which remain                 compute            0

The parts add up to the simulated step by construction. The simulated step may differ from the unprofiled step by a few
percent. On a busy machine, or with a library that stays slow once the profiler was loaded, the difference may be
larger, because no cost of the profiler explains the recorded step time. The parts are then scaled to the unprofiled
step, and the factor is stored. On CPUs all parts are scaled, because all work shares the cores. On GPUs only the parts
caused by the host or by peers are scaled, and the kernels keep their time.
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

#: The parts are scaled if the simulated step differs from the unprofiled step by more than this share.
_NEAR = 0.03
#: Parts that are caused by the host or by peers, and may be scaled on GPUs.
_SCALABLE_PARTS = ("waiting", "exposed_transfer", "input", "launch")


def step_parts(timeline: Timeline, timed_ms: float, *, staged: bool = False, fed: bool = True) -> StepParts | None:
    """Break down a step that takes `timed_ms` without the profiler; None if it cannot be simulated.

    Args:
        timeline: the job's recorded steps.
        timed_ms: mean time of the same job's unprofiled steps.
        staged: whether gradients are communicated through host memory. If so, copies to and from host memory count as
            transfer. Untraced host time also counts as transfer if not `fed`, because the job then waits for the
            threads that reduce gradients.
        fed: whether the job loads batches. If not, untraced host time is not input and counts as launch.
    """
    what_if = build_what_if(timeline, timed_ms)
    if what_if is None:
        return None
    on_cpu = timeline.tracks[0].is_cpu
    costs = what_if.corrected
    # The scenarios are in the order of `STEP_PARTS`: the first has all causes, and each later one has one cause less.
    scenarios = [costs]
    if len(what_if.graph.ranks) > 1:
        costs = equalize_ranks(what_if, costs, each_step=True)
    scenarios.append(costs)
    costs = without_transfer_time(costs)
    if staged and not on_cpu:
        costs = with_host_copies(what_if, costs)
        costs = costs if fed else _without_waits(what_if, costs)
    scenarios.append(costs)
    costs = replace(costs, duration=what_if.model.contention.removed_from(costs.duration))
    scenarios.append(costs)
    if fed:  # batches are awaited, and then copied to the device
        costs = _without_waits(what_if, with_host_copies(what_if, costs))
    scenarios.append(costs)
    if not on_cpu:  # on CPUs the host's calls are the training itself
        costs = without_launch_cost(what_if, _without_waits(what_if, costs))
        costs = without_syncs(what_if, costs)
    scenarios.append(costs)
    # Removing a cause cannot lengthen the step, so a longer step is an inaccuracy of the simulation.
    steps_ms = list(itertools.accumulate(what_if.each_step_ms(scenarios), min))
    reductions_ms = [before - after for before, after in itertools.pairwise([*steps_ms, 0.0])]
    parts_ms = dict(zip(STEP_PARTS, reductions_ms, strict=True))
    scale = scale_to_timed(parts_ms, timed_ms, on_cpu=on_cpu)
    return StepParts(
        timed_ms=timed_ms,
        replayed_ms=steps_ms[0],
        recorded_ms=what_if.simulated_ms,
        profiler_us_per_event=what_if.per_event_ns / 1e3,
        parts_ms={name: ms * scale if on_cpu or name in _SCALABLE_PARTS else ms for name, ms in parts_ms.items()},
        scaled_by=scale,
        on_cpu=on_cpu,
        hidden_communication_ms=max(0.0, _transfer_ms(what_if, what_if.corrected) - parts_ms["exposed_transfer"]),
    )


def scale_to_timed(parts_ms: Mapping[str, float], timed_ms: float, *, on_cpu: bool) -> float:
    """Return the factor that scales the parts to the unprofiled step; 1 if the parts' sum is near the unprofiled step.

    On CPUs the factor applies to all parts. On GPUs it applies to `_SCALABLE_PARTS`, and is 1 if the sum is too short.

    Worked example, on a GPU: the simulated step has 15 ms of kernels, 15 ms of launching and 9 ms of transfers, 39 ms
    in all. The unprofiled step takes 22 ms. The excess of 17 ms is removed from the 24 ms that are not kernels: 7 ms
    remain, and the factor is 7 / 24 = 0.29.
    """
    simulated_ms = sum(parts_ms.values())
    excess_ms = simulated_ms - timed_ms
    if on_cpu:
        return timed_ms / simulated_ms if simulated_ms > 0 and abs(excess_ms) > _NEAR * timed_ms else 1.0
    if excess_ms <= _NEAR * timed_ms:
        return 1.0
    scalable_ms = sum(parts_ms[name] for name in _SCALABLE_PARTS)
    return max(0.0, scalable_ms - excess_ms) / scalable_ms if scalable_ms > 0 else 1.0


def _transfer_ms(what_if: WhatIf, costs: Scenario) -> float:
    """Return the transfer time of a step, hidden or exposed, as the mean over devices."""
    graph = what_if.graph
    devices = len(set(graph.device.track.tolist()))
    return milliseconds(float(np.nansum(costs.transfer))) / max(graph.steps * devices, 1)


def _without_waits(what_if: WhatIf, costs: Scenario) -> Scenario:
    """Return the scenario without marked input waits and without untraced host time."""
    return without_untraced(what_if, without_input(what_if, costs))
