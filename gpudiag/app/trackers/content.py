"""Select the parts of an analysis that are logged to experiment trackers."""

from __future__ import annotations

import math
from pathlib import Path

from gpudiag.model.analysis import BUCKETS, Analysis
from gpudiag.report.export.tensorboard.log_directory import run_name
from gpudiag.report.header import real_step_ms
from gpudiag.training.loop.trackers.tracked_run import TrackedRun

#: Columns of the table of findings.
COLUMNS = ("code", "severity", "ranks", "cause", "title", "saves_ms", "confidence", "source", "advice")
_MOST_FINDINGS = 100


def metrics_of(analysis: Analysis) -> dict[str, float]:
    """Return the metrics: step time, throughput and utilization where known, mean buckets, and savings by finding.

    Names without the prefix `gpudiag/` are names that other tools use too. `mfu` is a percentage.
    """
    compute = analysis.compute
    known = {
        "step_time_ms": real_step_ms(analysis),
        "samples_per_s": analysis.source.samples_per_s,
        "tflops": None if compute is None else compute.tflops_per_s,
        "mfu": None if compute is None else compute.mfu_percent,
    }
    devices = analysis.devices
    for bucket in BUCKETS if devices else ():
        total_ms = sum(device.buckets_ms.get(bucket, 0.0) for device in devices)
        known[f"gpudiag/{bucket}_ms"] = total_ms / len(devices)
    if devices:
        known["gpudiag/overlapped_ms"] = sum(device.hidden_communication_ms for device in devices) / len(devices)
    for severity in ("critical", "warning"):
        known[f"gpudiag/findings_{severity}"] = float(sum(f.severity == severity for f in analysis.findings))
    for finding in reversed(analysis.findings):  # the first (most important) finding of a code overwrites the others
        known[f"gpudiag/saves/{finding.code}_ms"] = finding.recoverable_ms_per_step
    return {name: float(value) for name, value in known.items() if value is not None and math.isfinite(value)}


def tracked_run(analysis: Analysis, run: Path, report: Path) -> TrackedRun:
    """Return the metrics, findings and HTML page (`report`) that are logged for the run at this path."""
    rows = tuple(
        (
            finding.code,
            finding.severity,
            ", ".join(map(str, finding.ranks)),
            finding.cause or "",
            finding.title,
            finding.recoverable_ms_per_step,
            finding.confidence,
            "" if finding.source is None else finding.source.place,
            " ".join(finding.advice),
        )
        for finding in analysis.findings[:_MOST_FINDINGS]
    )
    return TrackedRun(name=run_name(run), metrics=metrics_of(analysis), columns=COLUMNS, rows=rows, report=str(report))
