"""Explain each bucket of the step by the findings, so that the table and the verdict agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpudiag.analysis.diagnosis.calibration import SAME_AMOUNT, WARNING_PERCENT
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.rules.rule import Edit, notable
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
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.intervals import length
from gpudiag.model.analysis import BUCKETS, Explained, Finding
from gpudiag.model.attribution import TrackAttribution
from gpudiag.units import milliseconds

#: Findings that may keep a device waiting for its host.
_ON_THE_HOST = (
    "launch-bound",
    "host-stall",
    "straggler",
    "host-sync",
    "memory-allocation",
    "input-bound",
    "slow-copy",
    "communication-bound",
)
#: Buckets of device time, which recording does not lengthen; but it may leave them without overlapping compute.
_ON_THE_DEVICE = frozenset({"communication_transfer", "copy"})
#: Buckets for which a stall accounts only by a part of its location (`one_place`).
_OF_A_PLACE = {"copy": "copies", "sync": "synchronizations"}
#: The findings that account for a bucket, and the edits that remove all of it.
_BY: dict[str, tuple[tuple[str, ...], tuple[Edit, ...]]] = {
    "communication_transfer": (("communication-bound", "straggler"), (without_communication,)),
    "communication_wait": (("straggler", "communication-bound"), (without_communication,)),
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


def pace_setter(case: Case) -> tuple[dict[str, float], float]:
    """Return (ms by bucket, step in ms) of the device that waits least for the others, which sets the pace."""
    track = _pace_track(case)
    if track is None:
        return dict.fromkeys(BUCKETS, 0.0), 0.0
    means = track.buckets_ns.mean(axis=0)
    return {name: milliseconds(float(ns)) for name, ns in zip(BUCKETS, means, strict=True)}, milliseconds(
        float(np.mean(track.step_ns))
    )


def _pace_track(case: Case) -> TrackAttribution | None:
    waiting = BUCKETS.index("communication_wait")
    tracks = [track for track in case.attribution.tracks if len(track.buckets_ns)]
    return min(tracks, key=lambda track: float(track.buckets_ns[:, waiting].mean()), default=None)


def explain(
    case: Case, what_if: WhatIf, scored: Sequence[ScoredFinding], findings: Sequence[Finding]
) -> tuple[Explained, ...]:
    """Explain each bucket except compute that takes 5 % of the step or more.

    A finding accounts for as much of a bucket as it saves, and the profiler for what it cost the host.
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
    codes, edits = _BY[bucket]
    accounts = [(finding.code, _accounted_ms(finding, bucket)) for finding in findings if finding.code in codes]
    accounts = [(code, accounted) for code, accounted in accounts if notable(accounted, step_ms)]
    names = list(dict.fromkeys(code for code, _ in accounts))
    queued = _queued_ms(case) if bucket == "idle" else 0.0
    left = ms - sum(accounted for _, accounted in accounts) - queued
    enough = max(WARNING_PERCENT / 100 * step_ms, SAME_AMOUNT * ms)
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
    """Return what a finding accounts for in a bucket: its savings, or the share it names if savings are not known."""
    if finding.code == "host-stall" and bucket in _OF_A_PLACE:
        return finding.parts_ms.get(_OF_A_PLACE[bucket], 0.0)
    if finding.recoverable_ms_per_step is not None:
        return finding.recoverable_ms_per_step
    named = finding.evidence.get("bucket") == bucket
    return float(finding.evidence.get("exposed_ms", 0.0)) if named else 0.0


def _recording_ms(what_if: WhatIf, bucket: str, edits: Sequence[Edit]) -> float:
    """Return how much of a bucket, per step, recording itself may have caused.

    On the host that is all that recording cost. On the device it is what the bucket lengthens the recorded step by and
    not the step as it is: a host that is slower while it is recorded leaves less compute to hide behind.
    """
    added = max(what_if.simulated_ms - what_if.now_ms, 0.0)
    if bucket not in _ON_THE_DEVICE or not added:
        return added
    recorded, now = (
        before - without
        for costs in (what_if.model.recorded, what_if.corrected)
        for before, without in [what_if.each_step_ms([costs, edits[0](what_if, costs)])]
    )
    return min(added, max(recorded - now, 0.0))


def _queued_ms(case: Case) -> float:
    """Return the gaps between queued ops, per step, on the device that sets the pace: no host causes them."""
    track = _pace_track(case)
    return 0.0 if track is None else milliseconds(length(track.queued) / len(track.step_ns))


def _hidden(
    what_if: WhatIf, scored: Sequence[ScoredFinding], edits: Sequence[Edit], left_ms: float
) -> tuple[tuple[str, ...], str]:
    """Return (codes of the findings that hide it, a note) for time that no finding accounts for."""
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
