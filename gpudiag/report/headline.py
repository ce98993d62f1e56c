"""Which finding a report leads with, and the hardware cause that explains it where there is one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpudiag.model.analysis import Analysis, Finding
from gpudiag.report import figures
from gpudiag.report.header import real_step_ms

#: No PCIe slot carries more one way (PCIe 5, 16 lanes): what is faster goes over a direct link.
_FASTEST_SLOT_GB_PER_S = 63.0
#: A collective below this share of what the link reaches alone does not use the link well.
_WELL_USED = 0.6
_FAR_BELOW = 0.8


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """What a report leads with.

    Attributes:
        finding: what it costs the step.
        title: the sentence.
        cause: the finding about the machine that explains it, if any.
    """

    finding: Finding
    title: str
    cause: Finding | None = None

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do: about the cause first."""
        before = () if self.cause is None else self.cause.advice
        return tuple(dict.fromkeys((*before, *self.finding.advice)))


def main_finding(findings: Sequence[Finding]) -> Finding | None:
    """Return the first finding that is worth acting on; if none is, the one that says so, else the first."""
    worthwhile = [finding for finding in findings if finding.severity != "info"]
    plain = [finding for finding in findings if finding.code == "compute-bound"]
    return next(iter([*worthwhile, *plain, *findings]), None)


def headline_of(analysis: Analysis) -> Headline | None:
    """Return what to lead with; None if no finding is worth acting on and part of the step is unexplained.

    A finding that saves one percent is no verdict on a job half of whose step nothing explains. There is none either
    on a device whose activity is not read, nor on input that nothing is done with.
    """
    if analysis.source.input_only or analysis.device_kind == "unread":
        return None
    main = main_finding(analysis.findings)
    if main is None:
        return None
    unexplained = any(bucket.unexplained_ms > 0 for bucket in analysis.explained)
    if main.severity == "info" and main.code != "compute-bound" and unexplained:
        return None
    if main.code == "communication-bound" and main.severity != "info":
        caused = _caused_by_hardware(main, analysis)
        if caused is not None:
            return caused
    return Headline(finding=main, title=main.title or main.code)


def _caused_by_hardware(main: Finding, analysis: Analysis) -> Headline | None:
    """Lead with the state of the links where it explains how slowly the collectives run."""
    reached = _figure(main, "busbw_gb_per_s")
    link = _figure(main, "nvlink_gb_per_s")
    alone = _figure(main, "probe_busbw_gb_per_s")
    slow = reached is None or reached <= _FASTEST_SLOT_GB_PER_S
    slow = slow or any(reached is not None and reached < _WELL_USED * most for most in (link, alone) if most)
    causes = [finding for finding in analysis.findings if finding.code in _CAUSES and finding.severity != "info"]
    cause = causes[0] if causes and slow else None
    if cause is not None:
        words = _CAUSES[cause.code].format(gpus=_gpus(cause))
    elif link is not None and reached is not None:
        words = "GPU peer access over NVLink is off"
    else:
        return None
    return Headline(finding=main, title=f"{words}{_consequence(main, analysis, reached, link, alone)}", cause=cause)


#: What each finding about the machine means in a few words.
_CAUSES = {
    "no-peer-access": "GPU peer access is off",
    "degraded-link": "The link of {gpus} is degraded",
    "shared-uplink": "{gpus} share one uplink",
    "peer-slower-than-host": "Direct copies between GPUs are slower than copies through host memory",
}


def _consequence(
    main: Finding, analysis: Analysis, reached: float | None, link: float | None, alone: float | None
) -> str:
    """Return `: all-reduce runs at 27 of 450 GB/s; costs up to 18.0 of 39.7 ms`."""
    parts = []
    if reached is not None:
        best = link or alone
        of = f" of {_whole(best)}" if best is not None and reached < _FAR_BELOW * best else ""
        operation = str(main.evidence.get("largest_collective") or "communication").replace("_", "-")
        parts.append(f"{operation} runs at {_whole(reached)}{of} GB/s")
    costs = main.recoverable_ms_per_step
    step_ms = real_step_ms(analysis)
    if costs is not None and 0 < costs < step_ms:
        shown = figures.milliseconds(costs, beside=step_ms)
        parts.append(f"communication costs up to {shown} of {figures.milliseconds(step_ms)} ms")
    return f": {'; '.join(parts)}" if parts else ""


def _whole(gb_per_s: float) -> str:
    return f"{gb_per_s:.0f}" if gb_per_s >= 9.5 else figures.rate(gb_per_s)


def _figure(finding: Finding, key: str) -> float | None:
    """Return a positive figure of the evidence, which a file may have filled with anything."""
    value = finding.evidence.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9 else None


def _gpus(finding: Finding) -> str:
    numbers = finding.evidence.get("gpus")
    known = [number for number in numbers if isinstance(number, int)] if isinstance(numbers, list | tuple) else []
    words = figures.ranks(known, capital=True) if known else ""
    return words.replace("Rank", "GPU") if known else "GPUs"
