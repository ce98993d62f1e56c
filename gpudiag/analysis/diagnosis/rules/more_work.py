"""Find the reason why a rank that computes longer has more work: longer sequences, or experts with more tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import LEAST_ELSEWHERE, LONGER_SEGMENT, MORE_WORK, MOST_OF_EXCESS
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.rules.rule import Advice, Edit
from gpudiag.analysis.diagnosis.simulation.components import Component, amount
from gpudiag.analysis.diagnosis.simulation.graph import NONE, Scenario, Times
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.timeline import OpClass

Cause = Literal["sequence", "experts"]

_SEQUENCE_ADVICE: Advice = (
    "Distribute sequences so that every rank gets the same cost: attention costs the square of a length.",
    "Pack sequences by cost rather than by number of samples, and assign them within a whole global batch.",
    "Limit the longest sequence, or split it over ranks (context parallelism).",
)
_EXPERTS_ADVICE: Advice = (
    "Balance the router: an auxiliary load-balancing loss, or a bias per expert that follows the load.",
    "Limit the capacity of an expert (capacity factor), so that one rank cannot get most tokens.",
    "Place often chosen experts on different ranks, or replicate them.",
)


class MoreWork(msgspec.Struct, frozen=True):
    """The cause, with its evidence and advice.

    `even` distributes the work evenly; None if the late ranks should only do as much as the others.
    """

    cause: Cause
    evidence: dict[str, Any]
    advice: Advice
    even: Edit | None = None


def more_work(case: Case, what_if: WhatIf, late: tuple[int, ...]) -> MoreWork | None:
    """Return the reason why late ranks have more work than their peers; None if nothing shows more work.

    Experts are examined first, because more tokens also need more FLOPs.
    """
    return _experts(what_if, late) or _sequences(case, what_if, late)


def _sequences(case: Case, what_if: WhatIf, late: tuple[int, ...]) -> MoreWork | None:
    """Return `sequence` if all late ranks have more FLOPs or more bytes of messages between stages than their peers."""
    ranks = () if case.run is None else case.run.ranks
    flops = {rank.rank: sum(rank.flops.by_precision.values()) for rank in ranks if rank.flops is not None}
    for name, amounts in (("flops", flops), ("message_bytes", _message_bytes(case))):
        ratios = _ratios_to_peers(what_if, amounts, late)
        if ratios and min(ratios.values()) >= MORE_WORK:
            beside = {str(rank): ratio for rank, ratio in ratios.items()}
            return MoreWork("sequence", {f"{name}_beside_peers": beside}, _SEQUENCE_ADVICE)
    return None


def _ratios_to_peers(what_if: WhatIf, amounts: dict[int, int], late: tuple[int, ...]) -> dict[int, float]:
    """Return late rank → its amount / mean amount of its peers that are not late; empty if an amount is unknown."""
    ratios = {}
    for peers in what_if.graph.peers:
        ranks = [what_if.graph.ranks[process] for process in peers]
        others = [amounts[rank] for rank in ranks if rank not in late and amounts.get(rank)]
        for rank in set(ranks) & set(late):
            if not others or not amounts.get(rank):
                return {}
            ratios[rank] = amounts[rank] / (sum(others) / len(others))
    return ratios


def _message_bytes(case: Case) -> dict[int, int]:
    """Return rank → bytes sent to and received from other stages, in messages of known size."""
    total: dict[int, int] = {}
    for track in case.tracks:
        counts = np.bincount(track.collectives.kind, minlength=len(track.collectives.kinds))
        for (operation, _, _, size), count in zip(track.collectives.kinds, counts.tolist(), strict=True):
            if operation in {"send", "recv"} and size is not None:
                total[track.rank] = total.get(track.rank, 0) + size * count
    return total


def _experts(what_if: WhatIf, late: tuple[int, ...]) -> MoreWork | None:
    """Return `experts` if late ranks are late only in the segments before or after an all-to-all.

    A slow device is slower in all segments, and long sequences lengthen every layer.
    """
    work = _work_by_segment(what_if, what_if.corrected)
    beside = _beside_all_to_alls(what_if)
    if work is None or beside is None or work.shape != beside.shape:
        return None
    late_processes = [process for process, rank in what_if.graph.ranks.items() if rank in late]
    others = [process for process in what_if.graph.ranks if process not in late_processes]
    if not late_processes or not others:
        return None
    late_ns, usual_ns = work[late_processes].mean(axis=0), np.median(work[others], axis=0)
    excess = np.maximum(late_ns - usual_ns, 0.0)
    longer = (late_ns >= LONGER_SEGMENT * usual_ns) & beside[late_processes].any(axis=0) & (excess > 0)
    if not excess.sum() or excess[longer].sum() < MOST_OF_EXCESS * excess.sum():
        return None
    if late_ns[~longer].sum() < LEAST_ELSEWHERE * late_ns.sum():
        return None
    expert_ms = float(late_ns[longer].sum()) / what_if.graph.steps / 1e6
    usual_ms = float(usual_ns[longer].sum()) / what_if.graph.steps / 1e6
    evidence = {"expert_ms_per_step": expert_ms, "expert_ms_per_step_of_peers": usual_ms}
    return MoreWork("experts", evidence, _EXPERTS_ADVICE, share_tokens)


def share_tokens(what_if: WhatIf, scenario: Scenario) -> Scenario:
    """Give each expert the mean of its peers' work, because tokens that leave one expert go to another."""
    work, beside = _work_by_segment(what_if, scenario), _beside_all_to_alls(what_if)
    if work is None or beside is None or work.shape != beside.shape:
        return scenario
    share = np.ones(work.shape)
    for peers in what_if.graph.peers:
        of_peers, of_experts = work[peers], beside[peers].any(axis=0)
        mean = np.broadcast_to(of_peers.mean(axis=0), of_peers.shape)
        share[peers] = np.divide(mean, of_peers, out=np.ones(mean.shape), where=of_experts & (of_peers > 0))
    segment_of_node, segment_of_op = what_if.model.segments
    if what_if.timeline.tracks[0].is_cpu:
        kept = np.fmin(scenario.busy, what_if.model.communication.busy)
        shares = share[what_if.graph.host.process, segment_of_node]
        return replace(scenario, busy=kept + (scenario.busy - kept) * shares)
    shares = share[what_if.model.process_of_op, segment_of_op]
    compute = what_if.graph.device.op_class == OpClass.COMPUTE
    return replace(scenario, duration=scenario.duration * np.where(compute, shares, 1.0))


def _work_by_segment(what_if: WhatIf, scenario: Scenario) -> Times | None:
    """Return float64[processes, segments], ns: work between consecutive collectives of a step."""
    component: Component = "launch" if what_if.timeline.tracks[0].is_cpu else "compute"
    graph = what_if.graph
    process = graph.host.process if component == "launch" else what_if.model.process_of_op
    segment = what_if.model.segments[0 if component == "launch" else 1]
    amounts = amount(what_if, scenario, component)
    if not len(segment):
        return None
    processes, segments = max(graph.ranks) + 1, int(segment.max()) + 1
    sums = np.bincount(process * segments + segment, weights=amounts, minlength=processes * segments)
    table: Times = sums.reshape(processes, segments).astype(np.float64)
    return table


def _beside_all_to_alls(what_if: WhatIf) -> NDArray[np.bool_] | None:
    """Return bool[processes, segments]: whether a segment begins or ends with an all-to-all of its process."""
    graph = what_if.graph
    device = graph.device
    segment_of_node, segment_of_op = what_if.model.segments
    segment = segment_of_node if what_if.timeline.tracks[0].is_cpu else segment_of_op
    processes, segments = max(graph.ranks) + 1, int(segment.max(initial=0)) + 1
    is_all_to_all = np.zeros(len(device.start), np.bool_)
    for index, track in enumerate(what_if.timeline.tracks):
        kinds = np.array([kind[0] == "all_to_all" for kind in track.collectives.kinds], np.bool_)
        if kinds.any():
            rows = track.collectives.row[kinds[track.collectives.kind]]
            is_all_to_all |= (device.track == index) & np.isin(device.row, rows)
    if not is_all_to_all.any():
        return None
    ends = np.zeros((processes, int(segment_of_node.max(initial=0)) + 2), np.bool_)
    launched = (device.launch != NONE) & (device.op_class == OpClass.COMMUNICATION) & is_all_to_all
    ends[what_if.model.process_of_op[launched], segment_of_node[device.launch[launched]]] = True
    begins = np.concatenate([np.zeros((processes, 1), np.bool_), ends[:, :-1]], axis=1)
    either: NDArray[np.bool_] = (ends | begins)[:, :segments]
    return either
