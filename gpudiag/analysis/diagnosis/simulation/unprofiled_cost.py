"""What the profiler cost the hosts, by the steps that were timed without it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from gpudiag.analysis.diagnosis.calibration import (
    DEAREST_NS_PER_CALL,
    DEAREST_NS_PER_EVENT,
    POOR_SIMULATION,
    SIMULATION_ERROR,
)
from gpudiag.analysis.diagnosis.simulation.level_between_ranks import lower_median
from gpudiag.model.timeline import Timeline
from gpudiag.units import NS_PER_MS, milliseconds

if TYPE_CHECKING:
    from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf

_HALVINGS = 12
_CLOSE = 1e-3


def as_steps_were_timed(what_if: WhatIf, step_ms: float) -> WhatIf:
    """With the cost per event nearest to what it has that leads to the timed step (the mean), or nearest to it.

    The corrected step time falls with the cost until the device sets the pace, and nothing beyond that is known. A host
    that was made just as slow as the device would seem to set the pace in every what-if.
    """
    if abs(what_if.corrected_ms - step_ms) <= SIMULATION_ERROR * step_ms:
        return what_if
    near, far = what_if.per_event_ns, (_dearest_ns(what_if) if what_if.corrected_ms > step_ms else 0.0)
    dearer, limit = far > near, what_if.at_cost(far).corrected_ms
    target = max(step_ms, limit * (1 + SIMULATION_ERROR)) if dearer else min(step_ms, limit)
    for _ in range(_HALVINGS):
        middle = (near + far) / 2
        ahead = what_if.at_cost(middle).corrected_ms - target
        enough = ahead <= _CLOSE * target if dearer else ahead >= -_CLOSE * target
        near, far = (near, middle) if enough else (middle, far)
    return what_if.at_cost(far)


def as_hosts_were_timed(what_if: WhatIf, step_ms: float, host_ms: Mapping[int, float]) -> WhatIf:
    """With the least higher cost per event at which the hosts work no longer for a step than they were timed to.

    Of a host whose device sets the pace the timed step says nothing, but a thread that fills the device's queue takes
    no longer than in the step in which it waited least for room there. One that is slower while it is recorded would
    hide what the device waits for. A cost that leads to a shorter step than the timed one is not taken.

    Args:
        what_if: the replay, at the cost that the timed steps lead to.
        step_ms: the timed step, the mean of the slowest rank.
        host_ms: by rank, the least that its host took to queue a step's work (`fastest_host_ms`).
    """
    near, far = what_if.per_event_ns, _dearest_ns(what_if)
    if near >= far or not _slower_than_timed(what_if, host_ms):
        return what_if
    for _ in range(_HALVINGS):
        middle = (near + far) / 2
        near, far = (middle, far) if _slower_than_timed(what_if.at_cost(middle), host_ms) else (near, middle)
    dearer = what_if.at_cost(far)
    return dearer if dearer.corrected_ms >= (1 - SIMULATION_ERROR) * step_ms else what_if


def as_each_host_was_timed(what_if: WhatIf, step_ms: float, host_ms: Mapping[int, float]) -> WhatIf:
    """With no host working longer for a step than it was timed to, where devices set the pace of the timed steps.

    A recording slows one host more than another, and the one that it slows most would seem to set the pace once what
    the device does is taken away: of ResNet-50 with slow collectives, two H200, one host took 24 ms of work for a
    recorded step and the other 35, both at most 26 and 30 while they were timed. Not taken where it leads to a shorter
    step than the timed one: then something else is not known.

    Args:
        what_if: the replay, at the cost that the timed steps lead to.
        step_ms: the timed step, the mean of the slowest rank.
        host_ms: as for `as_hosts_were_timed`.
    """
    if all(track.is_cpu for track in what_if.timeline.tracks):
        return what_if
    most_ns = {process: host_ms[rank] * NS_PER_MS for process, rank in what_if.graph.ranks.items() if rank in host_ms}
    timed = what_if.at_cost(what_if.per_event_ns, most_host_ns=most_ns)
    return timed if timed.corrected_ms >= (1 - POOR_SIMULATION) * step_ms else what_if


def recorded_lightly(timeline: Timeline) -> bool:
    """Whether all traces were recorded without operators, and have those of other recordings put in."""
    return all(trace.operators_merged for trace in timeline.traces)


def _slower_than_timed(what_if: WhatIf, host_ms: Mapping[int, float]) -> bool:
    """Whether hosts beside devices work longer for a step than they were timed to: the lower median of the ranks."""
    graph = what_if.graph
    if all(track.is_cpu for track in what_if.timeline.tracks):
        return False
    work = np.bincount(graph.host.process, weights=what_if.busy) / graph.steps
    beyond = [milliseconds(work[process]) - host_ms[rank] for process, rank in graph.ranks.items() if rank in host_ms]
    return bool(beyond) and float(lower_median(np.array(beyond))) > 0


def _dearest_ns(what_if: WhatIf) -> float:
    return DEAREST_NS_PER_CALL if recorded_lightly(what_if.timeline) else DEAREST_NS_PER_EVENT
