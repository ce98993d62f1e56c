"""How fast devices computed what a step is made of, and how much of their peak that is."""

from __future__ import annotations

from collections import Counter

from gpudiag.model.run import ComputeRate, RankRecord, RunRecord
from gpudiag.prediction.datasheet import peak_tflops

_WHOLE_PERCENT = 100


def compute_rate(run: RunRecord | None) -> ComputeRate | None:
    """Of the means of all ranks; None where no rank has counted, and with reasons where not all have.

    Worked example. Two ranks of 40 and 20 TFLOP per step in bf16 on two H100s, 100 ms timed on the slower one: 30 TFLOP
    in 100 ms are 300 TFLOP/s per device, of 989: 30 %.
    """
    if run is None or all(rank.flops is None for rank in run.ranks):
        return None
    counted = [rank.flops for rank in run.ranks if rank.flops is not None and not rank.flops.reason]
    if len(counted) < run.world_size:
        return ComputeRate(reasons={"flops_per_step": _why_not(run)})
    total = sum((Counter(one.by_precision) for one in counted), Counter[str]())
    by_precision = {name: flops // len(counted) for name, flops in total.most_common()}
    flops = sum(total.values()) / len(counted)
    precision = next(iter(by_precision), None)
    steps = [rank.unprofiled.mean_ms for rank in run.ranks if rank.unprofiled is not None]
    rate = flops / max(steps) / 1e9 if steps and max(steps) > 0 else None
    peak, source, reasons = _peak(run.ranks, precision or "")
    if rate is None:
        reasons["tflops_per_s"] = "no steps were timed"
    share = None if rate is None or peak is None else 100 * rate / peak
    if share is not None and share > _WHOLE_PERCENT:
        share, reasons["mfu_percent"] = None, "more than the peak: the peak or the count of operations is wrong"
    return ComputeRate(
        flops_per_step=round(flops),
        recomputed_flops_per_step=sum(one.recomputed for one in counted) // len(counted),
        precision=precision,
        by_precision=by_precision,
        unknown=tuple(dict.fromkeys(name for one in counted for name in one.unknown)),
        tflops_per_s=rate,
        peak_tflops=peak,
        peak_source=source,
        mfu_percent=share,
        reasons=reasons,
    )


def _why_not(run: RunRecord) -> str:
    told = (rank.flops for rank in run.ranks if rank.flops is not None)
    return next((one.reason for one in told if one.reason), "not every rank has counted its work")


def _peak(ranks: tuple[RankRecord, ...], precision: str) -> tuple[float | None, str, dict[str, str]]:
    """Of the mean device; where it is from, and why there is none."""
    if not any(rank.device.startswith("cuda") for rank in ranks):
        return None, "", {"peak_tflops": "nobody publishes one of a process on CPUs"}
    known = [peak_tflops(rank.device_name, precision) for rank in ranks]
    for rank, peak in zip(ranks, known, strict=True):
        if peak is None:
            return None, "", {"peak_tflops": f"no published peak of {rank.device_name} in {precision} is known here"}
    found = [peak for peak in known if peak is not None]
    sources = dict.fromkeys(source for _, source in found)
    return sum(peak for peak, _ in found) / len(found), "; ".join(sources), {}
