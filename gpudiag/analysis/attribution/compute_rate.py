"""Compute a device's FLOPs per second in a step, and their share of the device's peak."""

from __future__ import annotations

from collections import Counter

from gpudiag.model.compute_rates import peak_tflops
from gpudiag.model.run import ComputeRate, RankRecord, RunRecord

_WHOLE_PERCENT = 100


def compute_rate(run: RunRecord) -> ComputeRate | None:
    """Return the mean rate over ranks; None if no rank counted operations.

    If some ranks counted no operations, the result has a reason instead of a rate.

    Worked example. Two ranks perform 40 and 20 TFLOP per step in bf16 on two H100s, and the slower rank takes 100 ms.
    The mean of 30 TFLOP in 100 ms is 300 TFLOP/s per device, which is 30 % of the peak of 989 TFLOP/s.
    """
    if all(rank.flops is None for rank in run.ranks):
        return None
    counted = [rank.flops for rank in run.ranks if rank.flops is not None and not rank.flops.reason]
    if len(counted) < run.world_size:
        return ComputeRate(reasons={"flops_per_step": _uncounted_reason(run)})
    total = sum((Counter(flops.by_precision) for flops in counted), Counter[str]())
    by_precision = {name: flops // len(counted) for name, flops in total.most_common()}
    flops_per_step = sum(total.values()) / len(counted)
    precision = next(iter(by_precision), None)
    peak, source, reasons = _peak(run.ranks, precision or "")
    rate = _tflops_per_s(run.ranks, flops_per_step, reasons)
    return ComputeRate(
        flops_per_step=round(flops_per_step),
        recomputed_flops_per_step=sum(flops.recomputed for flops in counted) // len(counted),
        precision=precision,
        by_precision=by_precision,
        unknown=tuple(dict.fromkeys(name for flops in counted for name in flops.unknown)),
        tflops_per_s=rate,
        peak_tflops=peak,
        peak_source=source,
        mfu_percent=_share_percent(rate, peak, reasons),
        reasons=reasons,
    )


def _tflops_per_s(ranks: tuple[RankRecord, ...], flops_per_step: float, reasons: dict[str, str]) -> float | None:
    """Return FLOPs per step / step time of the slowest rank, in TFLOP/s. Without a time, add a reason; return None."""
    step_ms = max((rank.unprofiled.mean_ms for rank in ranks if rank.unprofiled is not None), default=0.0)
    if step_ms > 0:
        return flops_per_step / step_ms / 1e9
    reasons["tflops_per_s"] = "no unprofiled steps were measured"
    return None


def _share_percent(rate: float | None, peak: float | None, reasons: dict[str, str]) -> float | None:
    """Return `rate` in percent of `peak`; None if either is unknown. Above 100 %, add a reason and return None."""
    share = None if rate is None or peak is None else 100 * rate / peak
    if share is not None and share > _WHOLE_PERCENT:
        share, reasons["mfu_percent"] = None, "more than the peak: the peak or the count of operations is wrong"
    return share


def _uncounted_reason(run: RunRecord) -> str:
    reasons = (rank.flops.reason for rank in run.ranks if rank.flops is not None and rank.flops.reason)
    return next(reasons, "not every rank counted its operations")


def _peak(ranks: tuple[RankRecord, ...], precision: str) -> tuple[float | None, str, dict[str, str]]:
    """Return (mean peak of the devices in TFLOP/s or None, its source, name of the field → reason for a None)."""
    if not any(rank.device.startswith("cuda") for rank in ranks):
        return None, "", {"peak_tflops": "no peak is published for a process on CPUs"}
    peaks = []
    for rank in ranks:
        peak = peak_tflops(rank.device_name, precision)
        if peak is None:
            return None, "", {"peak_tflops": f"no published peak of {rank.device_name} in {precision} is known"}
        peaks.append(peak)
    sources = dict.fromkeys(source for _, source in peaks)
    return sum(tflops for tflops, _ in peaks) / len(peaks), "; ".join(sources), {}
