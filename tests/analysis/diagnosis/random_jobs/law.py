"""Check that findings or messages explain every large bucket (part of the step) of ranks that others wait for."""

from __future__ import annotations

from gpudiag.model.analysis import UNTRUSTED_CODES, Analysis, Device

#: Least share of the step from which a bucket needs an explanation.
NOTABLE = 0.05

_HOST = frozenset(
    {"launch-bound", "straggler", "host-stall", "host-sync", "memory-allocation", "input-bound", "slow-copy"}
)
#: The findings that explain each bucket.
EXPLAINS: dict[str, frozenset[str]] = {
    "communication_transfer": frozenset({"communication-bound"}),
    "communication_wait": frozenset({"straggler"}),
    "copy": frozenset({"slow-copy", "communication-bound", "straggler"}),
    "input": frozenset({"input-bound", "straggler", "host-stall"}),
    "sync": frozenset({"host-sync", "memory-allocation", "slow-copy", "straggler"}),
    "launch": _HOST - {"input-bound"},
    "idle": _HOST | {"communication-bound"},
}
#: Buckets that may contain profiler overhead.
_RECORDED = frozenset({"launch", "idle", "sync"})


def pacing(analysis: Analysis) -> tuple[Device, ...]:
    """Return the devices that others wait for.

    The wait of such a device in collectives exceeds the least wait of all devices by at most 5 % of a step.
    """
    devices = [device for device in analysis.devices if device.step_ms > 0]
    least = min((device.buckets_ms["communication_wait"] for device in devices), default=0.0)
    return tuple(
        device for device in devices if device.buckets_ms["communication_wait"] - least <= NOTABLE * device.step_ms
    )


def unexplained(analysis: Analysis) -> tuple[str, ...]:
    """Return the buckets that a warning about validity calls unexplained."""
    # Such a message begins with the bucket's name in words.
    lines = [warning.message.replace(" ", "_") for warning in analysis.validity if warning.code == "unexplained"]
    return tuple(bucket for bucket in EXPLAINS if any(line.startswith(bucket) for line in lines))


def violations(analysis: Analysis) -> list[str]:
    """Describe each bucket of `NOTABLE` or more that no finding or note explains and no message calls unexplained.

    The result is empty if the analysis calls its input untrusted or a rule abstains.
    """
    reported_codes = {finding.code for finding in analysis.findings}
    codes = {warning.code for warning in analysis.validity}
    if codes & (UNTRUSTED_CODES | {"cannot-tell"}) or any(code.startswith("cannot-tell:") for code in codes):
        return []
    devices = pacing(analysis)
    if not devices:
        return []
    step_ms = sum(device.step_ms for device in devices) / len(devices)
    corrected = analysis.steps.corrected_mean_ms
    added_ms = 0.0 if corrected is None else max(analysis.steps.mean_ms - corrected, 0.0)
    explained_buckets = {entry.bucket for entry in analysis.explained if entry.by or entry.note} | set(
        unexplained(analysis)
    )
    descriptions = []
    for bucket, codes_that_explain in EXPLAINS.items():
        ms = sum(device.buckets_ms[bucket] for device in devices) / len(devices)
        ms -= added_ms if bucket in _RECORDED else 0.0
        if ms < NOTABLE * step_ms or bucket in explained_buckets:
            continue
        share = f"{bucket} takes {100 * ms / step_ms:.0f} % of the step"
        # `compute-bound` states that all other buckets are small.
        if "compute-bound" in reported_codes:
            descriptions.append(f"compute-bound, but {share}")
        elif not reported_codes & codes_that_explain:
            descriptions.append(f"{share}, explained by none of {', '.join(sorted(reported_codes)) or 'nothing'}")
    return descriptions
