"""slow-copy: exposed host to device copies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import numpy as np

from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.rules.rule import (
    CannotTell,
    Proposal,
    advice_for,
    jax,
    pytorch,
    severity_of,
    tensorflow,
    unknown,
)
from gpudiag.analysis.diagnosis.simulation.counterfactuals import with_host_copies, with_pinned_copies
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.analysis import Finding
from gpudiag.model.event import HostMemory
from gpudiag.model.probed import pinned_to_device

_ADVICE = (
    tensorflow("Let tf.distribute copy ahead: a distributed dataset, prefetched, instead of arrays fed to each step."),
    pytorch("Copy the next batch on a separate stream during compute (non_blocking=True)."),
    tensorflow("Copy the next batch during compute: prefetch it."),
    jax("Copy the next batch during compute: jax.device_put ahead of the step, which returns at once."),
    unknown("Copy the next batch during compute."),
    "Copy less: keep images as uint8 and convert on the GPU; keep constant inputs on the device.",
)
_PIN = pytorch("Pin the host memory: DataLoader(pin_memory=True), or tensor.pin_memory() once.")


class SlowCopy:
    """Copies between host and device do not overlap with compute.

    Copies from pageable memory are slow and block the host. Copies from pinned memory reach the link's bandwidth and
    can overlap with compute. Savings are the step time that overlapping these copies removes.
    """

    code: ClassVar[str] = "slow-copy"
    title: ClassVar[str] = "Copies between CPU and GPU lengthen the step"

    def examine(self, case: Case, what_if: WhatIf) -> Iterator[Proposal | CannotTell]:
        """Propose a step whose host copies overlap and do not block the host."""
        if not what_if.graph.device.host_copy.any():
            return
        yield Proposal(edit=with_host_copies, describe=partial(self._describe, case, what_if))

    def _describe(self, case: Case, what_if: WhatIf, gain: float, percent: float) -> Finding:
        """Return the finding for savings of `gain` ms per step, which are `percent` of the step."""
        device, graph = what_if.graph.device, what_if.graph
        pageable_ns = pinned_ns = 0.0
        sizes = {"pageable": 0.0, "pinned": 0.0}
        for op in np.flatnonzero(device.host_copy):
            events = case.timeline.traces[case.tracks[device.track[op]].trace].events
            row = int(device.row[op])
            # An unknown size is negative.
            duration, size = float(device.end[op] - device.start[op]), max(int(events.size_bytes[row]), 0)
            if events.host_memory[row] == HostMemory.PAGEABLE:
                pageable_ns, sizes["pageable"] = pageable_ns + duration, sizes["pageable"] + size
            else:
                pinned_ns, sizes["pinned"] = pinned_ns + duration, sizes["pinned"] + size
        track_steps = graph.steps * len(case.tracks)
        pageable = pageable_ns > pinned_ns
        evidence: dict[str, object] = {
            "pageable_ms_per_step": pageable_ns / track_steps / 1e6,
            "pinned_ms_per_step": pinned_ns / track_steps / 1e6,
        }
        # The rate is that of the kind of memory whose copies take most time; bytes per ns are GB/s.
        total, time = (sizes["pageable"], pageable_ns) if pageable else (sizes["pinned"], pinned_ns)
        if total and time:
            evidence["copied_bytes_per_step"] = (sizes["pageable"] + sizes["pinned"]) / track_steps
            evidence["achieved_gb_per_s"] = total / time
            pinned = pinned_to_device(case.facts) if case.facts is not None else None
            if pinned is not None:
                evidence["probe_pinned_gb_per_s"] = pinned
            at_probed = None if case.facts is None else with_pinned_copies(what_if, what_if.corrected, case.facts)
            if at_probed is not None:
                evidence["savings_ms_pinned"] = what_if.saving_ms(at_probed)
        return Finding(
            code=self.code,
            severity=severity_of(percent),
            ranks=case.timeline.ranks_present,
            cause="pageable memory" if pageable else "not hidden behind compute",
            recoverable_ms_per_step=gain,
            recoverable_percent=percent,
            confidence="high",
            title=f"copies between CPU and GPU add {gain:.1f} ms per step",
            evidence=evidence,
            advice=advice_for(case.timeline.framework, (_PIN, *_ADVICE) if pageable else _ADVICE),
        )
