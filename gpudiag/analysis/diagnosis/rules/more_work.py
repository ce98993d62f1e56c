"""Find the reason why a rank that computes longer has more work: longer sequences, or experts with more tokens."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np

from gpudiag.analysis.diagnosis.calibration import LEAST_ELSEWHERE, LONGER_SEGMENT, MORE_WORK, MOST_OF_EXCESS
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.even_step import beside_all_to_alls, share_tokens, work_by_segment
from gpudiag.analysis.diagnosis.rules.rule import Advice, Edit
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf

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
    """The reason for more work, with its evidence and advice.

    `even` is the edit that distributes the work evenly; if it is None, late ranks are equalized to the median.
    """

    cause: Cause
    evidence: dict[str, Any]
    advice: Advice
    even: Edit | None = None


def more_work(case: Case, what_if: WhatIf, late: tuple[int, ...]) -> MoreWork | None:
    """Return the reason why late ranks have more work than their peers; None if nothing shows more work.

    Experts are examined first, because an expert with more tokens also has more FLOPs.
    """
    return _experts(what_if, late) or _sequences(case, what_if, late)


def _sequences(case: Case, what_if: WhatIf, late: tuple[int, ...]) -> MoreWork | None:
    """Return `sequence` if all late ranks have more FLOPs or bytes of messages than their peers, else None."""
    ranks = () if case.run is None else case.run.ranks
    flops = {rank.rank: sum(rank.flops.by_precision.values()) for rank in ranks if rank.flops is not None}
    for name, amounts in (("flops", flops), ("message_bytes", _message_bytes(case))):
        ratios = _ratios_to_peers(what_if, amounts, late)
        if ratios and min(ratios.values()) >= MORE_WORK:
            beside = {str(rank): ratio for rank, ratio in ratios.items()}
            return MoreWork("sequence", {f"{name}_beside_peers": beside}, _SEQUENCE_ADVICE)
    return None


def _ratios_to_peers(what_if: WhatIf, amounts: dict[int, int], late: tuple[int, ...]) -> dict[int, float]:
    """Return late rank → (its amount of work) / (mean of peers that are not late); empty if an amount is unknown."""
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
    """Return rank → bytes of its point-to-point messages of known size, in the whole recording."""
    total: dict[int, int] = {}
    for track in case.tracks:
        counts = np.bincount(track.collectives.kind, minlength=len(track.collectives.kinds))
        for (operation, _, _, size), count in zip(track.collectives.kinds, counts.tolist(), strict=True):
            if operation in {"send", "recv"} and size is not None:
                total[track.rank] = total.get(track.rank, 0) + size * count
    return total


def _experts(what_if: WhatIf, late: tuple[int, ...]) -> MoreWork | None:
    """Return `experts` if late ranks compute longer mostly in segments next to an all-to-all, else None.

    A segment is the work between two collectives. Other causes lengthen all segments: a slow device computes everything
    slower, and long sequences lengthen every layer.
    """
    # Both tables have a row per process and a column per segment.
    work = work_by_segment(what_if, what_if.corrected)
    beside = beside_all_to_alls(what_if)
    if work is None or beside is None or work.shape != beside.shape:  # nodes and ops may have different last segments
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
    # If nearly all segments are longer, the device is slow rather than its experts.
    if late_ns[~longer].sum() < LEAST_ELSEWHERE * late_ns.sum():
        return None
    expert_ms = float(late_ns[longer].sum()) / what_if.graph.steps / 1e6
    usual_ms = float(usual_ns[longer].sum()) / what_if.graph.steps / 1e6
    evidence = {"expert_ms_per_step": expert_ms, "expert_ms_per_step_of_peers": usual_ms}
    return MoreWork("experts", evidence, _EXPERTS_ADVICE, share_tokens)
