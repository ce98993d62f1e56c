"""communication-bound: exposed transfer time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import numpy as np

from gpudiag.analysis.diagnosis.calibration import MOST, MOSTLY_UNSEEN, NOTABLE_PERCENT
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.rules.communication_advice import (
    LINKS,
    communication_advice,
    largest_collective,
    links_in_doubt,
    unused_nvlink_gb_per_s,
)
from gpudiag.analysis.diagnosis.rules.rule import (
    CannotTell,
    Proposal,
    advice_for,
    notable,
    pytorch,
    severity_of,
    split_savings,
)
from gpudiag.analysis.diagnosis.simulation.counterfactuals import (
    transports,
    with_transport,
    without_bucket_copy,
    without_communication,
    without_communication_calls,
    without_transfer,
    without_transfer_time,
)
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.analysis import Finding
from gpudiag.model.probed import probed_busbw, transport_of
from gpudiag.model.timeline import OpClass
from gpudiag.units import milliseconds

_PEER_ACCESS = (
    "Turn on peer access between the GPUs: their NVLink is many times faster than the busbw reached, which is typical "
    "of copies through host memory. Unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; `gpudiag topology` shows other reasons."
)
_OTHER_TRANSPORT = (
    "Use the transport that was faster at these sizes in the probes (savings_ms_at_probed): peer access "
    "(unset NCCL_P2P_DISABLE), or NCCL_ALGO=Ring or Tree."
)
_LESS_BUCKET_COPY = pytorch(
    "Avoid copying gradients out of the buckets: DistributedDataParallel(gradient_as_bucket_view=True)."
)


class CommunicationBound:
    """Communication costs step time: no compute overlaps with it, or it slows down or delays the compute beside it.

    Only the time after the last participant arrived counts, because waiting for a straggler is not transfer. The
    simulation removes all transfers, bucket copies, the slowdown of kernels beside transfers, and the CPU's calls for
    communication. The report shows the savings of each part. If only the CPU's calls cost time, and launching costs
    twice as much, the finding is `launch-bound` instead. If the probes measured collectives of the same size on this
    machine, the report compares their bandwidth with the bandwidth in the step.

    Large collectives that reach a small share of the NVLink bandwidth show that peer access is off, even if the machine
    was not probed. With probes and the sizes of the model's gradients, the report adds predicted savings of other
    strategies. The advice fits the job's communication: DDP, FSDP, communication through one rank, or custom calls.
    """

    code: ClassVar[str] = "communication-bound"
    title: ClassVar[str] = "Communication lengthens the step"

    def examine(self, case: Case, what_if: WhatIf) -> Iterator[Proposal | CannotTell]:
        """Propose a step without the cost of communication."""
        device = what_if.graph.device
        communication = device.op_class == OpClass.COMMUNICATION
        missing = set(range(case.timeline.world_size)) - set(case.timeline.ranks_present)
        if communication.any() and missing and case.unseen_share() > MOSTLY_UNSEEN:
            exposed = max(case.exposed_ms("communication_transfer").values(), default=0.0)
            if notable(exposed, case.step_ms):
                yield CannotTell(
                    f"collectives expose {exposed:.1f} ms of the step, but without the traces of all their ranks "
                    "transferring and waiting for a straggler cannot be distinguished: give the traces of all ranks"
                )
            return
        if communication.any() or what_if.model.communication.any():
            yield Proposal(
                edit=without_communication,
                # If only the host's calls cost time, and launching costs twice as much, the finding is `launch-bound`.
                beyond=without_communication_calls,
                kind="communication",
                describe=partial(self._describe, case, what_if),
            )

    def _describe(self, case: Case, what_if: WhatIf, gain: float, percent: float) -> Finding:
        """Return the finding for savings of `gain` ms per step, which are `percent` of the step."""
        device, graph = what_if.graph.device, what_if.graph
        matched = ~np.isnan(device.transfer)  # collectives whose last arrival is known
        transfer = device.transfer[matched]
        track_steps = graph.steps * len(case.tracks)
        bucket_copy = milliseconds((device.end - device.start)[what_if.model.bucket_copy].sum() / track_steps)
        largest = largest_collective(case, from_last_arrival=True)
        probed = None
        if largest is not None and case.facts is not None:
            kind = largest.operation, largest.size_bytes, largest.ranks
            probed = probed_busbw(case.facts, *kind, transport_of(case.run))
        parts = _parts(what_if, gain)
        evidence: dict[str, object] = {
            "collectives_per_step": int(matched.sum()) / track_steps,
            "transfer_ms_per_step": milliseconds(transfer.sum() / track_steps),
            "exposed_transfer_ms_by_rank": case.exposed_ms("communication_transfer"),
        }
        if bucket_copy:
            evidence["bucket_copies_ms_per_step"] = bucket_copy
        if largest is not None:
            evidence |= {
                "largest_collective": largest.operation,
                "largest_collective_bytes": largest.size_bytes,
                "largest_collective_transfer_ms": milliseconds(largest.median_ns),
                "busbw_gb_per_s": largest.busbw_gb_per_s,
            }
        if probed is not None:
            evidence["probe_busbw_gb_per_s"] = probed
        # With full overlap, a step is at least as long as its transfers.
        longest = float(np.bincount(device.track[matched], weights=transfer).max(initial=0.0)) / graph.steps
        evidence["savings_ms_with_full_overlap"] = min(
            gain, max(what_if.now_ms - max(what_if.now_ms - gain, milliseconds(longest)), 0.0)
        )
        faster = _faster_transports(case, what_if)
        if faster:
            evidence["savings_ms_at_probed"] = faster
        reached = None if largest is None else largest.busbw_gb_per_s
        by_calls = parts["CPU calls"] > MOST * gain
        in_doubt = not by_calls and links_in_doubt(case, reached, probed)
        advice = (*((LINKS,) if in_doubt else ()), *communication_advice(case, by_calls=by_calls))
        if faster.keys() - {transport_of(case.run)}:  # the job may already use the fastest transport
            advice = (*advice, _OTHER_TRANSPORT)
        nvlink = None if largest is None else unused_nvlink_gb_per_s(case, largest.size_bytes, largest.busbw_gb_per_s)
        if nvlink is not None:
            evidence["nvlink_gb_per_s"] = nvlink
            advice = (_PEER_ACCESS, *advice)
        if not by_calls and 100 * bucket_copy >= NOTABLE_PERCENT * case.step_ms:
            advice = (*advice, _LESS_BUCKET_COPY)
        return Finding(
            code=self.code,
            severity=severity_of(percent),
            ranks=case.timeline.ranks_present,
            cause="transfer",
            recoverable_ms_per_step=gain,
            recoverable_percent=percent,
            confidence="high",
            title=f"communication adds {gain:.1f} ms per step",
            parts_ms=parts,
            evidence=evidence,
            advice=advice_for(case.timeline.framework, advice),
        )


def _parts(what_if: WhatIf, gain: float) -> dict[str, float]:
    """Return part → ms per step that its removal saves once the parts before it are removed; the sum is `gain`.

    The CPU's calls are removed first, because transfers cost nothing as long as the calls set the pace. Reports list
    the exposed transfers first.
    """
    uncalled = without_communication_calls(what_if, what_if.corrected)
    exposed = without_transfer_time(uncalled)
    uncontended = without_transfer(what_if, exposed)
    removed = {
        "CPU calls": uncalled,
        "exposed": exposed,
        "kernels slowed beside it": uncontended,
        "copying buckets": without_bucket_copy(what_if, uncontended),
    }
    parts = split_savings(what_if, removed, "copies and waits", gain)
    return {name: parts[name] for name in ("exposed", "copying buckets", "kernels slowed beside it", *parts)}


def _faster_transports(case: Case, what_if: WhatIf) -> dict[str, float]:
    """Return transport → savings, in ms per step, if transfers took the time that the probes measured.

    For the job's current transport, the savings show how much contention and late launches cost.
    """
    if case.facts is None:
        return {}
    gains: dict[str, float] = {}
    for transport in transports(case.facts):
        edited = with_transport(what_if, what_if.corrected, case.facts, transport)
        gain = 0.0 if edited is None else what_if.saving_ms(edited)
        if notable(gain, what_if.corrected_ms):
            gains[transport] = gain
    return dict(sorted(gains.items(), key=lambda item: -item[1]))
