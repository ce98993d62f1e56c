"""Explain each bucket (part of the step time) by findings, and order the fixes. Without simulation, report shares.

A bucket's share of the step is an upper bound of its savings. Only this upper bound is known for a single recorded
step, for a job that cannot be simulated, and for one rank of several.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpudiag.analysis.diagnosis.calibration import MOST, NOTABLE_MS, OF_NVLINK, SAME_AMOUNT, WARNING_PERCENT
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.rules.communication_advice import LargestCollective, largest_collective, nvlink_gb_per_s
from gpudiag.analysis.diagnosis.rules.compute_bound import ComputeBound
from gpudiag.analysis.diagnosis.rules.rule import Edit, notable, severity_of
from gpudiag.analysis.diagnosis.scoring import ScoredFinding
from gpudiag.analysis.diagnosis.simulation.counterfactuals import (
    with_host_copies,
    without_allocation,
    without_communication,
    without_input,
    without_launch_cost,
    without_syncs,
    without_untraced,
)
from gpudiag.analysis.diagnosis.simulation.graph import Scenario
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.intervals import length
from gpudiag.model.analysis import BUCKETS, Explained, Finding, Fix
from gpudiag.model.timeline import Timeline, TrackAttribution
from gpudiag.units import milliseconds

#: Codes of findings that may explain why a device waits for its host.
_ON_THE_HOST = (
    "launch-bound",
    "recompilation",
    "host-stall",
    "straggler",
    "host-sync",
    "memory-allocation",
    "input-bound",
    "slow-copy",
    "communication-bound",
)
#: Buckets of device time. Recording does not lengthen device time, but may expose more of it by delaying compute.
_ON_THE_DEVICE = frozenset({"communication_transfer", "copy"})
#: Bucket → key in `parts_ms` of a `host-stall` finding. Only this component of the finding's savings explains the
#: bucket.
_OF_A_PLACE = {"copy": "copies", "sync": "synchronizations"}
#: Bucket → (codes of the findings that account for the bucket, edits that remove the whole bucket).
_BY: dict[str, tuple[tuple[str, ...], tuple[Edit, ...]]] = {
    "communication_transfer": (("communication-bound", "straggler"), (without_communication,)),
    "communication_wait": (("straggler", "pipeline-bubble", "communication-bound"), (without_communication,)),
    "copy": (("slow-copy", "communication-bound", "host-sync", "host-stall"), (with_host_copies,)),
    "input": (("input-bound", "straggler"), (without_input,)),
    "sync": (
        (
            "host-sync",
            "memory-allocation",
            "slow-copy",
            "communication-bound",
            "straggler",
            "launch-bound",
            "host-stall",
        ),
        (without_syncs, without_allocation),
    ),
    "launch": (_ON_THE_HOST, (without_launch_cost,)),
    "idle": (_ON_THE_HOST, (without_input, without_untraced, without_launch_cost, without_syncs)),
}
#: Bucket → (code, cause, description) of the most likely finding.
LIKELY = {
    "communication_transfer": ("communication-bound", "transfer", "communication not overlapped with compute"),
    "communication_wait": ("straggler", "unknown", "waiting for other ranks"),
    "copy": ("slow-copy", None, "copies between CPU and GPU"),
    "input": ("input-bound", "loader", "waiting for data"),
    "sync": ("host-sync", None, "the CPU waiting for the GPU"),
    "launch": ("launch-bound", None, "launching kernels from the CPU"),
    "idle": ("host-stall", None, "a GPU that idles while its CPU records nothing"),
}
#: Descriptions on CPU-only runs.
_ON_CPU = {
    "copy": "copies",
    "sync": "waiting in calls that block",
    "launch": "framework calls between operators",
    "idle": "time in which the training thread records nothing",
}
_UNSEEN = "communication, or waiting in it"
_ALL_RANKS = (
    "Record all ranks over the same steps and analyse their traces together, to distinguish waiting for a straggler "
    "from transferring."
)
_MARKED_STEPS = "Record five or more marked steps of all ranks, so that savings can be estimated."
#: Code of a finding → the bucket that contains the time lost.
_BUCKET = {code: bucket for bucket, (code, *_) in LIKELY.items()}


def pace_setter(case: Case) -> tuple[dict[str, float], float]:
    """Return (ms per step by bucket, step ms) of the device that waits least for other ranks; zeros without steps."""
    track = _pace_track(case)
    if track is None:
        return dict.fromkeys(BUCKETS, 0.0), 0.0
    buckets = dict(zip(BUCKETS, map(milliseconds, track.buckets_ns.mean(axis=0).tolist()), strict=True))
    return buckets, milliseconds(float(np.mean(track.step_ns)))


def _pace_track(case: Case) -> TrackAttribution | None:
    waiting = BUCKETS.index("communication_wait")
    tracks = [track for track in case.attribution.tracks if len(track.buckets_ns)]
    return min(tracks, key=lambda track: float(track.buckets_ns[:, waiting].mean()), default=None)


def explain(
    case: Case, what_if: WhatIf, scored: Sequence[ScoredFinding], findings: Sequence[Finding]
) -> tuple[Explained, ...]:
    """Explain each bucket, except compute, that takes 5 % of the step or more.

    A finding explains as much of a bucket as it saves. Time that recording may have added counts as explained.
    `findings` are those of `scored` after the engine's revisions.
    """
    buckets, step_ms = pace_setter(case)
    return tuple(
        _explain_bucket(case, what_if, bucket, ms, step_ms, scored, findings)
        for bucket, ms in buckets.items()
        if bucket != "compute" and step_ms > 0 and 100 * ms >= WARNING_PERCENT * step_ms
    )


def _explain_bucket(  # noqa: PLR0917  # the parameters of `explain`, and the bucket's figures
    case: Case,
    what_if: WhatIf,
    bucket: str,
    ms: float,
    step_ms: float,
    scored: Sequence[ScoredFinding],
    findings: Sequence[Finding],
) -> Explained:
    """Explain one bucket, which takes `ms` of a step of `step_ms` on the device that sets the pace.

    Findings are subtracted first, then gaps between queued ops, then what recording may have caused. If much time is
    left, this time is either hidden behind the findings or unexplained.
    """
    codes, edits = _BY[bucket]
    accounts = [(finding.code, _accounted_ms(finding, bucket)) for finding in findings if finding.code in codes]
    accounts = [(code, accounted) for code, accounted in accounts if notable(accounted, step_ms)]
    names = list(dict.fromkeys(code for code, _ in accounts))
    queued = _queued_ms(case) if bucket == "idle" else 0.0
    left = ms - sum(accounted for _, accounted in accounts) - queued
    enough = max(WARNING_PERCENT / 100 * step_ms, SAME_AMOUNT * ms)  # so much may stay unexplained
    if left > enough:
        recording = min(_recording_ms(what_if, bucket, edits), left)
        if notable(recording, step_ms):
            names.append("profiler-overhead")
            left -= recording
    if left <= enough:
        gaps = f"{queued:.1f} ms of it are gaps between kernels that were already queued" if queued else ""
        return Explained(bucket=bucket, ms=ms, by=tuple(names), note=gaps)
    behind, note = _hidden(what_if, scored, edits, left)
    names.extend(code for code in behind if code not in names)
    return Explained(bucket=bucket, ms=ms, by=tuple(names), unexplained_ms=0.0 if behind else left, note=note)


def _accounted_ms(finding: Finding, bucket: str) -> float:
    """Return the ms of a bucket that a finding accounts for: its savings, or its exposed time if savings are unknown.

    A pipeline bubble explains its whole length, although the proposed microbatches remove only half of the bubble.
    """
    if finding.code == "host-stall" and bucket in _OF_A_PLACE:
        return finding.parts_ms.get(_OF_A_PLACE[bucket], 0.0)
    if finding.code == "pipeline-bubble":
        return float(finding.evidence.get("bubble_ms", 0.0))
    if finding.recoverable_ms_per_step is not None:
        return finding.recoverable_ms_per_step
    named = finding.evidence.get("bucket") == bucket
    return float(finding.evidence.get("exposed_ms", 0.0)) if named else 0.0


def _recording_ms(what_if: WhatIf, bucket: str, edits: Sequence[Edit]) -> float:
    """Return how many ms of a bucket, per step, recording itself may have caused.

    For a bucket of host time, the result is the whole cost of recording. For a bucket of device time, the result is at
    most the bucket's cost in the recorded step minus its cost in the corrected step. The cost differs because a slowed
    host leaves less compute to hide device time.
    """
    added = max(what_if.simulated_ms - what_if.now_ms, 0.0)
    if bucket not in _ON_THE_DEVICE or not added:
        return added

    def cost_ms(scenario: Scenario) -> float:
        before, without = what_if.each_step_ms([scenario, edits[0](what_if, scenario)])
        return before - without

    return min(added, max(cost_ms(what_if.model.recorded) - cost_ms(what_if.corrected), 0.0))


def _queued_ms(case: Case) -> float:
    """Return the gaps between ops that were already queued, in ms per step on the device that sets the pace."""
    track = _pace_track(case)
    return 0.0 if track is None else milliseconds(length(track.queued) / len(track.step_ns))


def _hidden(
    what_if: WhatIf, scored: Sequence[ScoredFinding], edits: Sequence[Edit], left_ms: float
) -> tuple[tuple[str, ...], str]:
    """Return (codes of the findings behind which the unexplained `left_ms` is hidden, explanation in words).

    The `edits` remove the bucket. The time is hidden if the first edit saves little before the findings are fixed.
    """
    fixed = what_if.corrected
    for finding in scored:
        fixed = finding.proposal.edit(what_if, fixed)
    without = fixed
    for edit in edits:
        without = edit(what_if, without)
    now, alone, before, after = what_if.each_step_ms(
        [what_if.corrected, edits[0](what_if, what_if.corrected), fixed, without]
    )
    codes = tuple(dict.fromkeys(finding.finding.code for finding in scored))
    if codes and now - alone < left_ms / 2:
        return codes, (
            f"hidden behind {', '.join(codes)}: removing it would save {max(now - alone, 0.0):.1f} ms per step now, "
            f"and {max(before - after, 0.0):.1f} ms once these are fixed"
        )
    return (), (
        f"no finding explains {left_ms:.1f} ms of it: another path of equal length may exist, so that fixing this "
        "alone may save nothing"
    )


def likely_causes(case: Case, reason: str, *, trusted: bool = True) -> tuple[Finding, ...]:
    """Return findings for the buckets with 5 % of the step or more, largest first, then `compute-bound` if it applies.

    Args:
        case: the job.
        reason: why savings cannot be estimated.
        trusted: whether the recording is complete enough to report `compute-bound`.
    """
    buckets, step_ms = pace_setter(case)
    if step_ms < NOTABLE_MS:
        return ()
    findings = [
        _likely(case, bucket, buckets[bucket], step_ms, reason)
        for bucket in sorted(LIKELY, key=lambda name: -buckets[name])
        if 100 * buckets[bucket] >= WARNING_PERCENT * step_ms
    ]
    percent = 100 * buckets["compute"] / step_ms
    if trusted and (not findings or percent > 100 * MOST):  # compute is the only large bucket, or most of the step
        largest = max(buckets[bucket] for bucket in LIKELY)
        findings.append(ComputeBound.without_savings(case, buckets["compute"], percent, 100 * largest / step_ms))
    return tuple(findings)


def with_unseen_communication(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """Add a finding about communication if traces of other ranks are missing and no finding reports communication.

    A finding with unknown savings is placed as if it saved half of its exposed time.
    """
    buckets, step_ms = pace_setter(case)
    ms = buckets["communication_transfer"]
    missing = len(case.timeline.ranks_present) < case.timeline.world_size
    reported = any(finding.code == "communication-bound" for finding in findings)
    if missing and not reported and step_ms > 0 and 100 * ms >= WARNING_PERCENT * step_ms:
        reason = "the traces of the other ranks are missing, so that waiting and transferring cannot be distinguished"
        findings = [*findings, _likely(case, "communication_transfer", ms, step_ms, reason)]
    return _by_amount(findings)


def _by_amount(findings: Sequence[Finding]) -> list[Finding]:
    """Move each finding with unknown savings before the first finding that saves less than half of its exposed time."""
    ordered = [finding for finding in findings if finding.recoverable_ms_per_step is not None]
    for share in (finding for finding in findings if finding.recoverable_ms_per_step is None):
        half = float(share.evidence.get("exposed_ms", 0.0)) / 2
        smaller = (i for i, finding in enumerate(ordered) if (finding.recoverable_ms_per_step or 0.0) < half)
        ordered.insert(next(smaller, len(ordered)), share)
    return ordered


def _likely(case: Case, bucket: str, ms: float, step_ms: float, reason: str) -> Finding:
    """Return the most likely finding for a bucket that takes `ms` of `step_ms`, as an upper bound of the savings.

    `reason` says why savings cannot be estimated.
    """
    code, cause, words = LIKELY[bucket]
    if case.tracks and case.tracks[0].is_cpu:
        words = _ON_CPU.get(bucket, words)
    percent = 100 * ms / step_ms
    evidence: dict[str, object] = {"reason": reason, "exposed_ms": ms, "bucket": bucket}
    advice = (_MARKED_STEPS,)
    if bucket == "communication_transfer" and len(case.timeline.ranks_present) < case.timeline.world_size:
        words, cause, advice = _UNSEEN, None, (_ALL_RANKS,)
        # Without the other ranks' traces, waiting in a collective counts as transfer.
        collective = largest_collective(case, from_last_arrival=False)
        if collective is not None:
            link_gb_per_s = nvlink_gb_per_s(case.tracks[0].device_name)
            evidence |= {
                "largest_collective": collective.operation,
                "largest_collective_bytes": collective.size_bytes,
                "busbw_gb_per_s": collective.busbw_gb_per_s,
            }
            if link_gb_per_s is not None:
                evidence["nvlink_gb_per_s"] = link_gb_per_s
            words += _bandwidth_words(collective, link_gb_per_s)
    return Finding(
        code=code,
        severity=severity_of(percent),
        ranks=case.timeline.ranks_present,
        cause=cause,
        confidence="low",
        title=f"{words}: up to {ms:.1f} ms ({percent:.0f} % of {_unit_words(case.timeline)})",
        evidence=evidence,
        advice=advice,
    )


def _unit_words(timeline: Timeline) -> str:
    return {"step": "a step", "repeated-unit": "a repeated unit", "recording": "the recording"}[timeline.unit]


def _bandwidth_words(collective: LargestCollective, link_gb_per_s: float | None) -> str:
    """Return the end of a title: the bandwidths, and whether such a bandwidth suggests that ranks wait."""
    if link_gb_per_s is None:
        return f" ({collective.operation} at {collective.busbw_gb_per_s:.3g} GB/s)"
    waits = ", which points to waiting" * (collective.busbw_gb_per_s < OF_NVLINK * link_gb_per_s)
    return f" ({collective.operation} at {collective.busbw_gb_per_s:.3g} of {link_gb_per_s:.0f} GB/s{waits})"


def path_of_fixes(what_if: WhatIf, findings: Sequence[ScoredFinding]) -> tuple[Fix, ...]:
    """Return the fixes in the order of `findings`, without fixes that save nothing after the fixes before them.

    Each fix has the step time after it, and in `then` the bucket of the next fix, or `compute` after the last one.
    """
    costs, chain = what_if.corrected, []
    for scored in findings:
        costs = scored.proposal.edit(what_if, costs)
        chain.append(costs)
    now = what_if.now_ms
    kept: list[tuple[ScoredFinding, float]] = []
    saved = 0.0
    for scored, together in zip(findings, what_if.savings_ms(chain), strict=True):
        if notable(together - saved, now):
            kept.append((scored, now - together))
            saved = together
    after = [_BUCKET.get(scored.finding.code, "compute") for scored, _ in kept[1:]]
    return tuple(
        Fix(code=scored.finding.code, ranks=scored.finding.ranks, cause=scored.finding.cause, step_ms=ms, then=then)
        for (scored, ms), then in zip(kept, [*after, "compute"], strict=False)
    )
