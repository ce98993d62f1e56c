"""Test the compute rate from ranks that counted their FLOPs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpudiag.analysis.attribution.compute_rate import compute_rate
from gpudiag.model.run import RankRecord, RunRecord, StepFlops, StepTimes

if TYPE_CHECKING:
    from gpudiag.model.run import ComputeRate

H100 = "NVIDIA H100 80GB HBM3"
TERA = 10**12


def rate(
    *ranks: tuple[StepFlops | None, float | None], devices: tuple[str, ...] = (), on: str = "cuda:0", world: int = 0
) -> ComputeRate | None:
    """Return the compute rate of ranks, each given as (FLOPs per step, step time in ms).

    `devices` are the ranks' device models (by default H100), `on` is the device of each rank, and `world` is the number
    of ranks of the job (0: no rank is missing).
    """
    records = []
    for rank, (flops, step_ms) in enumerate(ranks):
        times: Any = None
        if step_ms is not None:
            times = StepTimes(
                step_ms=(step_ms,), mean_ms=step_ms, median_ms=step_ms, standard_error_ms=0.0, jitter_ms=0.0
            )
        name = devices[rank] if devices else H100
        records.append(
            RankRecord(
                rank=rank, local_rank=rank, host="", pid=1, device=on, device_name=name, flops=flops, unprofiled=times
            )
        )
    run = RunRecord(
        created="", command=(), workload="", framework="pytorch", strategy="", world_size=world or len(ranks), nodes=1,
        batch_size_per_device=None, ranks=tuple(records), status="complete",
    )  # fmt: skip
    return compute_rate(run)


def counted(recomputed: int = 0, unknown: tuple[str, ...] = (), **tera: int) -> StepFlops:
    return StepFlops(
        by_precision={name: of * TERA for name, of in tera.items()}, recomputed=recomputed, unknown=unknown
    )


def test_rate_is_mean_over_ranks_at_slowest_step() -> None:
    result = rate(
        (counted(bf16=40, fp32=1, recomputed=4, unknown=("a",)), 100.0),
        (counted(bf16=20, recomputed=1, unknown=("b", "a")), 80.0),
    )
    assert result is not None
    assert (result.flops_per_step, result.recomputed_flops_per_step) == (30_500_000_000_000, 2)
    assert (result.precision, result.by_precision) == ("bf16", {"bf16": 30 * TERA, "fp32": TERA // 2})
    assert result.unknown == ("a", "b")
    assert result.tflops_per_s == pytest.approx(305)
    assert result.peak_tflops is not None
    assert result.mfu_percent == pytest.approx(100 * 305 / result.peak_tflops)
    assert result.reasons == {}


def test_uncounted_rank_gives_a_reason() -> None:
    assert rate((None, 10.0), (None, 10.0)) is None
    for ranks, why in (
        (((counted(bf16=1), 1.0), (None, 1.0)), "not every rank counted its operations"),
        (((None, 1.0), (StepFlops(reason="no shapes"), 1.0), (StepFlops(reason="x"), 1.0)), "no shapes"),
        (((counted(bf16=1), 1.0), (StepFlops(reason="no shapes"), 1.0)), "no shapes"),
    ):
        result = rate(*ranks)
        assert result is not None
        assert (result.reasons, result.tflops_per_s) == ({"flops_per_step": why}, None)
    missing = rate((counted(bf16=1), 1.0), world=2)
    assert missing is not None
    assert "flops_per_step" in missing.reasons


def test_no_rate_without_unprofiled_steps() -> None:
    for step_ms in (None, 0.0):
        result = rate((counted(bf16=1), step_ms))
        assert result is not None
        assert (result.tflops_per_s, result.mfu_percent) == (None, None)
        assert result.reasons == {"tflops_per_s": "no unprofiled steps were measured"}
        assert result.peak_tflops is not None


def test_peak_is_the_mean_over_devices_with_a_known_peak() -> None:
    def peak(*devices: str, on: str = "cuda:0") -> tuple[float | None, int, str]:
        result = rate(*[(counted(bf16=1), 10.0)] * len(devices), devices=devices, on=on)
        assert result is not None
        return result.peak_tflops, result.peak_source.count(";"), result.reasons.get("peak_tflops", "")

    h100, a100 = peak(H100)[0] or 0.0, peak("NVIDIA A100-SXM4-80GB")[0] or 0.0
    assert h100 > a100 > 0
    assert peak(H100, H100) == (h100, 0, "")
    assert peak(H100, "NVIDIA A100-SXM4-80GB") == ((h100 + a100) / 2, 1, "")
    assert peak(H100, "a toaster") == (None, 0, "no published peak of a toaster in bf16 is known")
    assert peak(H100, on="cpu") == (None, 0, "no peak is published for a process on CPUs")


def test_share_above_peak_is_omitted() -> None:
    result = rate((counted(bf16=40), 1e-3))
    assert result is not None
    assert result.peak_tflops is not None
    assert result.mfu_percent is None
    assert "more than the peak" in result.reasons["mfu_percent"]
