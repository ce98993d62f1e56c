"""memory-allocation: the host allocates and frees driver memory within the steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.rules.rule import (
    CannotTell,
    Proposal,
    advice_for,
    jax,
    pytorch,
    severity_of,
    tensorflow,
)
from gpudiag.analysis.diagnosis.simulation.counterfactuals import without_allocation
from gpudiag.analysis.diagnosis.simulation.graph import HostBlock
from gpudiag.analysis.diagnosis.simulation.host_time import analysed_span
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.analysis import Finding
from gpudiag.model.event import EventKind, Role, any_of
from gpudiag.units import milliseconds

_ADVICE = (
    pytorch("Remove torch.cuda.empty_cache() from the loop: the next step allocates the freed memory again."),
    pytorch(
        "Near the device's limit the caching allocator frees blocks and allocates others. If "
        "torch.cuda.memory_stats()['num_alloc_retries'] grows, use a smaller batch or activation checkpointing."
    ),
    pytorch(
        "Sizes that change between steps fit no cached block: pad or bucket them to a few sizes, or set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    ),
    tensorflow("Set TF_GPU_ALLOCATOR=cuda_malloc_async, which keeps freed memory in a pool of the driver."),
    jax("Donate the state that a step replaces: jax.jit(step, donate_argnums=…), so that its buffers are used again."),
    jax("Set XLA_PYTHON_CLIENT_PREALLOCATE=true (the default), which allocates once, before the steps."),
    "Allocate pinned host memory once and refill it, as a pinning loader does.",
)


class MemoryAllocation:
    """The host allocates or frees driver memory within the steps, while the device is idle.

    Frameworks keep freed memory, so that after the first steps they should need no more memory from the driver.
    `cudaMalloc` takes tenths of a millisecond, and `cudaFree` also waits until the device has finished its queue. The
    evidence has the number and time of these calls by name. Savings are the step time that removing the calls saves. A
    rank that allocates more than the other ranks is a straggler.
    """

    code: ClassVar[str] = "memory-allocation"
    title: ClassVar[str] = "The CPU allocates and frees GPU memory in every step"

    def examine(self, case: Case, what_if: WhatIf) -> Iterator[Proposal | CannotTell]:
        """Propose a step without allocating or freeing driver memory."""
        if case.tracks[0].is_cpu:
            return
        host = what_if.graph.host
        if host.allocating.any() or (host.block == HostBlock.RELEASE).any():
            yield Proposal(edit=without_allocation, describe=partial(self._describe, case, what_if))

    def _describe(self, case: Case, what_if: WhatIf, gain: float, percent: float) -> Finding:
        """Return the finding for savings of `gain` ms per step, which are `percent` of the step."""
        took_ms, calls = _calls(case, what_if)
        return Finding(
            code=self.code,
            severity=severity_of(percent),
            ranks=tuple(sorted(what_if.graph.ranks.values())),
            cause=next(iter(took_ms), "memory of the driver"),
            recoverable_ms_per_step=gain,
            recoverable_percent=percent,
            confidence="high",
            title=f"the CPU allocates and frees GPU memory in every step, which costs {gain:.1f} ms per step",
            evidence={"calls_per_step": calls, "allocation_ms_per_step": took_ms},
            advice=advice_for(case.timeline.framework, _ADVICE),
        )


def _calls(case: Case, what_if: WhatIf) -> tuple[dict[str, float], dict[str, float]]:
    """Return (name of a call → ms, name → number of calls), per step and process, longest first.

    Of a process with several devices only the first track is read, because calls belong to the process.
    """
    took_ns: dict[str, int] = defaultdict(int)
    calls: dict[str, int] = defaultdict(int)
    steps = 0
    for track in {track.trace: track for track in reversed(case.tracks) if track.trace in what_if.graph.ranks}.values():
        events = case.timeline.traces[track.trace].events
        begin, end = analysed_span(track)
        steps += len(track.window_steps)
        rows = events.rows_of(EventKind.RUNTIME)
        rows = rows[any_of(events.role[rows], Role.ALLOCATION, Role.RELEASE)]
        start = events.start_ns[rows] + track.shift_ns
        for row in rows[(start >= begin) & (start < end)].tolist():
            took_ns[events.name_of(row)] += int(events.end_ns[row] - events.start_ns[row])
            calls[events.name_of(row)] += 1
    names = sorted(took_ns, key=lambda name: -took_ns[name])
    steps = max(steps, 1)
    return {name: milliseconds(took_ns[name] / steps) for name in names}, {name: calls[name] / steps for name in names}
