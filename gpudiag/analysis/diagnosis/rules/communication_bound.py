"""communication-bound: exposed transfer time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import numpy as np

from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.examples import DDP, Job, all_reduce, fetch, kernels, update
from gpudiag.analysis.diagnosis.replay.probe_what_if import transports, with_transport
from gpudiag.analysis.diagnosis.replay.what_if import WhatIf
from gpudiag.analysis.diagnosis.rules.advice import Advice, advice_for, pytorch, tensorflow
from gpudiag.analysis.diagnosis.rules.rule import NOTABLE_PERCENT, CannotTell, Examples, Proposal, notable, severity_of
from gpudiag.model.analysis import Finding
from gpudiag.model.probed import probed_busbw, transport_of
from gpudiag.model.timeline import UNKNOWN, OpClass
from gpudiag.units import bus_factor, milliseconds

#: With more of the transferring than this in collectives of ranks whose traces are missing, nothing can be said of it.
_MOSTLY_UNSEEN = 0.1
_ADVICE = (
    tensorflow("Send fewer bytes: exchange the gradients of several batches at once, added up first."),
    tensorflow(
        "Hide more: larger batches per device; compare `--strategy nccl`, `multi-worker` and `hierarchical-copy`."
    ),
    "See what the links can do: `gpudiag topology` (peer access, NVLink) and `gpudiag bandwidth`.",
    pytorch("Send fewer bytes: gradients in bf16 (DDP's bf16_compress_hook), or exchange less often (no_sync())."),
    pytorch("Hide more: larger batches per device; smaller DDP buckets (bucket_cap_mb) so that the last one is short."),
)
_OTHER_TRANSPORT = (
    "Use the transport that the probes found faster at these sizes (gain_ms_at_probed): peer access "
    "(unset NCCL_P2P_DISABLE), or NCCL_ALGO=Ring or Tree."
)
_LESS_PACKING = pytorch(
    "Do not copy gradients back out of the buckets: DistributedDataParallel(gradient_as_bucket_view=True)."
)


class CommunicationBound:
    """Collectives transfer data while nothing is computed beside them.

    Counted is only the time after the last participant arrived; waiting for a late rank is not transfer. The replay
    lets every transfer take no time, leaves out the kernels that only move gradients in and out of buckets, and lets
    the others run undisturbed, without the host's calls for all that; where those calls are all that costs, it is
    silent. The bandwidth reached inside the step stands beside what the same size reaches alone on this machine, where
    the probes measured that.
    """

    code: ClassVar[str] = "communication-bound"
    order: ClassVar[int] = 3
    title: ClassVar[str] = "Transfers that no compute hides"

    FIRES: ClassVar[Examples] = (
        ("all gradients are exchanged at the end", Job(ranks=4, step=(kernels(10), all_reduce(10), update(1)))),
        (
            "what is computed hides only half of it",
            Job(ranks=2, step=(kernels(10), all_reduce(20), kernels(10), update(1))),
        ),
    )
    SILENT: ClassVar[Examples] = (
        ("computing hides all of it", Job(ranks=4, step=(kernels(10), all_reduce(10), kernels(15), update(1)))),
        (
            "40 ms in a collective, all of it waiting for a late rank",
            Job(ranks=4, step=(kernels(10), all_reduce(0.1), update(1)), extra={2: (fetch(50),)}),
        ),
    )
    ABSTAINS: ClassVar[Examples] = (
        (
            "the trace of the rank that came late is missing",
            Job(ranks=4, step=DDP, extra={2: (fetch(30),)}, recorded=(0, 1, 3)),
        ),
    )

    def examine(self, case: Case) -> Iterator[Proposal | CannotTell]:
        """One proposal: exchanging costs nothing."""
        what_if = case.what_if
        if what_if is None:
            return
        device = what_if.graph.device
        communication = device.op_class == OpClass.COMMUNICATION
        missing = set(range(case.timeline.world_size)) - set(case.timeline.ranks_present)
        if communication.any() and missing and case.unseen_share() > _MOSTLY_UNSEEN:
            exposed = max(case.exposed_ms("communication_transfer").values(), default=0.0)
            if notable(exposed, case.step_ms):
                yield CannotTell(
                    f"collectives take {exposed:.1f} ms of the step beside no compute, but without the traces of all "
                    "their ranks transferring cannot be told from waiting for a late rank: give the traces of all ranks"
                )
            return
        if communication.any() or what_if.exchanged.any():
            yield Proposal(
                edit=what_if.without_exchange,
                # What only the host's calls for it cost is a matter of launching, not of transferring.
                beyond=what_if.without_exchange_calls,
                describe=partial(self._describe, case, what_if),
            )

    def _describe(self, case: Case, what_if: WhatIf, gain: float, percent: float) -> Finding:
        device, graph = what_if.graph.device, what_if.graph
        matched = ~np.isnan(device.transfer)
        transfer = device.transfer[matched]
        per_step = max(graph.steps, 1) * max(len(case.lanes), 1)
        packing = milliseconds((device.end - device.start)[what_if.packing].sum() / per_step)
        sizes = _largest(case)
        evidence: dict[str, object] = {
            "collectives_per_step": int(matched.sum()) / per_step,
            "transfer_ms_per_step": milliseconds(transfer.sum() / per_step),
            "exposed_transfer_ms_by_rank": case.exposed_ms("communication_transfer"),
        }
        if packing:
            evidence["packing_ms_per_step"] = packing
        if sizes is not None:
            evidence |= sizes
        faster = _faster_transports(case, what_if)
        if faster:
            evidence["gain_ms_at_probed"] = faster
        advice: Advice = _ADVICE
        if faster.keys() - {transport_of(case.run)}:
            advice = (*advice, _OTHER_TRANSPORT)
        if 100 * packing >= NOTABLE_PERCENT * case.step_ms:
            advice = (*advice, _LESS_PACKING)
        return Finding(
            code=self.code,
            severity=severity_of(percent),
            ranks=case.timeline.ranks_present,
            cause="transfer",
            recoverable_ms_per_step=gain,
            recoverable_percent=percent,
            confidence="high",
            title=f"transfers that no compute hides cost {gain:.1f} ms of each step",
            evidence=evidence,
            advice=advice_for(case.timeline.framework, advice),
        )


def _faster_transports(case: Case, what_if: WhatIf) -> dict[str, float]:
    """By how much the step would be shorter if each transfer took what the probes measured over each transport alone.

    The job's own transport is among them: what it gains so is what contention and late launches cost the transfers.
    """
    if case.facts is None:
        return {}
    gains: dict[str, float] = {}
    for transport in transports(case.facts):
        edited = with_transport(what_if, what_if.corrected, case.facts, transport)
        gain = 0.0 if edited is None else what_if.gain_ms(edited)
        if notable(gain, what_if.corrected_ms):
            gains[transport] = gain
    return dict(sorted(gains.items(), key=lambda item: -item[1]))


def _largest(case: Case) -> dict[str, object] | None:
    """Operation, size and achieved bus bandwidth of the kind of collective that takes the most transfer time."""
    best: tuple[float, dict[str, object]] | None = None
    for lane in case.lanes[:1]:
        table = lane.collectives
        known = table.last_arrival != UNKNOWN
        for index, (operation, _, ranks, size) in enumerate(table.kinds):
            mine = known & (table.kind == index)
            factor = bus_factor(operation, ranks or case.timeline.world_size)
            if not mine.any() or size is None or factor is None:
                continue
            time = (table.end - table.last_arrival)[mine]
            typical = float(np.median(time))
            if typical <= 0:
                continue
            found: dict[str, object] = {
                "largest": operation,
                "largest_bytes": size,
                "largest_transfer_ms": milliseconds(typical),
                "largest_busbw_gb_per_s": size / typical * factor,
            }
            alone = None
            if case.facts is not None:
                count = ranks or case.timeline.world_size
                alone = probed_busbw(case.facts, operation, size, count, transport_of(case.run))
            if alone is not None:
                found["probe_busbw_gb_per_s"] = alone
            if best is None or float(time.sum()) > best[0]:
                best = (float(time.sum()), found)
    return None if best is None else best[1]
