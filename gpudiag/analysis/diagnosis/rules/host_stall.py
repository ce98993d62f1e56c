"""host-stall: the training thread stalls within the step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from gpudiag.analysis.diagnosis.calibration import MOST
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.places import Place, main_place, stalls
from gpudiag.analysis.diagnosis.rules.rule import (
    Advice,
    CannotTell,
    Proposal,
    advice_for,
    jax,
    pytorch,
    severity_of,
    tensorflow,
)
from gpudiag.analysis.diagnosis.simulation.counterfactuals import without_common_untraced
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.analysis import Finding

#: Maximum number of locations in the evidence.
_MOST_PLACES = 5
_COLLECTING = (
    "Control garbage collection: gc.freeze() after setup, gc.disable(), and gc.collect() every few hundred "
    "steps{together}."
)
ELSEWHERE: Advice = (
    "Look for logging, checkpoints, metrics, sleeping, or waiting for a lock or a file at that location.",
    "Do it every N steps, or in a separate thread.",
    pytorch("Write checkpoints asynchronously: torch.distributed.checkpoint.async_save."),
    pytorch("To see its name in the report, put a gpudiag.range around it."),
    tensorflow("To see its name in the report, put a gpudiag.range around it."),
    jax("To see its name in the report, put a jax.profiler.TraceAnnotation around it."),
    jax("Or it is block_until_ready, which JAX records only with the Python tracer (python_tracer_level = 1)."),
)
_LOST_CORE: Advice = (
    (
        "Find other programs on the CPU cores of these processes (with top; loader workers, other jobs) and give "
        "each process separate cores (numactl, taskset, OMP_NUM_THREADS): in the unprofiled steps threads waited "
        "{waited:.1f} ms per step for a core."
    ),
)
#: Cause of a stall in which Python collects garbage.
GARBAGE_COLLECTION = "garbage collection"
_MANY_PLACES: Advice = ("Look for Python in hooks and between layers: the evidence has the longest stalls.",)


class HostStall:
    """Untraced host time of the training thread in the middle or at the end of its steps leaves the devices idle.

    The thread logs, saves a checkpoint, collects garbage, or runs Python that calls no framework. The report names the
    operators before and after the stall, and the user's function if stacks were recorded. Untraced time between a
    step's mark and its first operator is `input-bound`. A rank that stalls alone is a `straggler`.
    """

    code: ClassVar[str] = "host-stall"
    title: ClassVar[str] = "The training thread stalls within the step"

    def examine(self, case: Case, what_if: WhatIf) -> Iterator[Proposal | CannotTell]:
        """Propose a step in which no training thread stalls."""
        if what_if.untraced.any():
            yield Proposal(edit=without_common_untraced, describe=partial(self._describe, case, what_if))

    def _describe(self, case: Case, what_if: WhatIf, gain: float, percent: float) -> Finding:
        """Return the finding for savings of `gain` ms per step, which are `percent` of the step."""
        # Stalls of a single rank do not count, because they make it a straggler.
        places = stalls(case, case.timeline.ranks_present, common=True)
        first = main_place(places, gain)  # None if the time is spread over many places
        collecting = first is not None and first.collecting
        where = f" {first.words}" if first is not None else " at many points of the step" if places else ""
        advice = stall_advice(case, first) if first is not None or not places else _many_places(case, gain)
        what = "garbage collection stalls training" if collecting else "the training thread stalls"
        return Finding(
            code=self.code,
            severity=severity_of(percent),
            ranks=tuple(sorted(what_if.graph.ranks.values())),
            cause=GARBAGE_COLLECTION if collecting else "unmarked time within the step",
            recoverable_ms_per_step=gain,
            recoverable_percent=percent,
            confidence="high",
            title=f"{what}{where}, which costs {gain:.1f} ms per step",
            place=first.words if first is not None else "",
            evidence={"places_ms_per_step": {place.words: place.ms_per_step for place in places[:_MOST_PLACES]}},
            advice=advice_for(case.timeline.framework, advice),
        )


def _many_places(case: Case, gain_ms: float) -> Advice:
    """Return advice for many short stalls: separate CPU cores, if threads mostly waited for a core, or less Python."""
    hosts = [] if case.run is None else [rank.timed for rank in case.run.ranks if rank.timed is not None]
    waits = [host.scheduling.run_queue_wait_ms for host in hosts if host.scheduling is not None]
    waited = max(waits, default=0.0)
    if waited < MOST * gain_ms:
        return (*_MANY_PLACES, *ELSEWHERE)
    return (*(str(line).format(waited=waited) for line in _LOST_CORE), *_MANY_PLACES)


def stall_advice(case: Case, place: Place | None) -> Advice:
    """Return the advice for a stall at this location."""
    if place is None or not place.collecting:
        return ELSEWHERE
    together = " on all ranks at once" if case.timeline.world_size > 1 else ""
    return (_COLLECTING.format(together=together),)
