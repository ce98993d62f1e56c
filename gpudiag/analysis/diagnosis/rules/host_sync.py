"""host-sync: the host blocks on the device every step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import numpy as np

from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.places import user_frames
from gpudiag.analysis.diagnosis.rules.rule import (
    TF_COMPILE,
    TF_SEVERAL_STEPS,
    CannotTell,
    Proposal,
    advice_for,
    jax,
    pytorch,
    severity_of,
    tensorflow,
    unknown,
)
from gpudiag.analysis.diagnosis.simulation.components import synchronizing_more, syncs
from gpudiag.analysis.diagnosis.simulation.counterfactuals import without_syncs
from gpudiag.analysis.diagnosis.simulation.graph import HostBlock
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.analysis import Finding
from gpudiag.model.event import EventKind

_ADVICE = (
    tensorflow("Read losses and metrics (.numpy(), float(), print) every N steps, not in each."),
    tensorflow("NcclAllReduce and copies to the CPU delay later launches. " + TF_SEVERAL_STEPS),
    TF_COMPILE,
    pytorch(
        "Find .item(), .cpu(), float(loss), print(loss), nonzero or boolean masks in the loop; do it every N steps."
    ),
    jax("Find block_until_ready, float(loss), jax.device_get, print(loss) in the loop; do it every N steps."),
    unknown("Find reads from the device and waits for it in the loop; do them every N steps."),
    "Keep running sums on the device and read them once per epoch.",
    pytorch("Set torch.cuda.set_sync_debug_mode('warn') to print the source line of each."),
)


class HostSync:
    """The host waits for the device in the middle of a step. The host cannot run ahead, and the device becomes idle.

    The evidence has the calls, the framework operators around them (`aten::item`, `aten::nonzero`, …) and, if stacks
    were recorded, the user's functions. Savings are the step time saved without these waits and the copies that the
    host waits for. A rank that waits alone, or at least twice as often as its peers, is a straggler.
    """

    code: ClassVar[str] = "host-sync"
    title: ClassVar[str] = "The CPU waits for the GPU in every step"

    def examine(self, case: Case, what_if: WhatIf) -> Iterator[Proposal | CannotTell]:
        """Propose a step in which no synchronization blocks."""
        if not syncs(what_if).any():
            return
        if synchronizing_more(what_if) and any(len(track.collectives) for track in case.tracks):
            return  # a rank that synchronizes more is a straggler if its peers wait in collectives
        yield Proposal(edit=without_syncs, describe=partial(self._describe, case, what_if))

    def _describe(self, case: Case, what_if: WhatIf, gain: float, percent: float) -> Finding:
        """Return the finding for savings of `gain` ms per step, which are `percent` of the step."""
        calls, operators, frames = _calls(case, what_if)
        evidence: dict[str, object] = {"calls_per_step": calls, "operators_per_step": operators}
        if frames:
            evidence["host_frames_per_step"] = frames
        first = next(iter(operators), None) or next(iter(calls), "a synchronization")
        return Finding(
            code=self.code,
            severity=severity_of(percent),
            ranks=tuple(sorted(what_if.graph.ranks.values())),
            cause=first,
            recoverable_ms_per_step=gain,
            recoverable_percent=percent,
            confidence="high",
            title=f"the CPU waits for the GPU in {first}, which costs {gain:.1f} ms per step",
            evidence=evidence,
            advice=advice_for(case.timeline.framework, _ADVICE),
        )


def _calls(case: Case, what_if: WhatIf) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Return (blocking calls, operators around them, user's functions), each as name → number per step and rank."""
    host = what_if.graph.host
    rank_steps = what_if.graph.steps * len(what_if.graph.ranks)
    calls: dict[str, float] = defaultdict(float)
    operators: dict[str, float] = defaultdict(float)
    frames: dict[str, float] = defaultdict(float)
    for trace_index in what_if.graph.ranks:
        events = case.timeline.traces[trace_index].events
        rows = host.row[(host.process == trace_index) & (host.block == HostBlock.SYNC)]
        ops = events.rows_of(EventKind.OPERATOR)
        for frame, times in user_frames(events, rows.tolist()).items():
            frames[frame] += times / rank_steps
        for row in rows:
            calls[events.name_of(row)] += 1 / rank_steps
            thread = events.thread[row]
            on_thread = ops[(events.thread[ops] == thread)]
            # The operators around a call are among the last 64 that began before it, because nesting is never deeper.
            # The user called the outermost.
            upto = int(np.searchsorted(events.start_ns[on_thread], events.start_ns[row], side="right"))
            around = [int(op) for op in on_thread[max(0, upto - 64) : upto] if events.end_ns[op] >= events.end_ns[row]]
            if around:
                operators[events.name_of(around[0])] += 1 / rank_steps
    return _most_frequent(calls), _most_frequent(operators), _most_frequent(frames)


def _most_frequent(table: dict[str, float]) -> dict[str, float]:
    return dict(sorted(table.items(), key=lambda item: -item[1])[:5])
