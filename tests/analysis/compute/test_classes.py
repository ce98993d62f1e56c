"""Test that the classes of kernels sum to the compute bucket, and which bound each class has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.attribution.summary import summarise_devices
from gpudiag.analysis.compute.work import compute_classes, compute_work
from gpudiag.analysis.timeline import build_timeline
from gpudiag.trace import read_traces
from tests.timeline_builder import TraceBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudiag.model.compute_rates import ComputeClass
    from gpudiag.model.event import Trace

TRACES = Path(__file__).parents[2] / "traces"
NAMES = ("ampere_sgemm_32x32_tn", "nvjet_sm90_tst_128", "softmax_warp_forward", "vectorized_elementwise_kernel", "x")


def analysed(traces: Sequence[Trace]) -> tuple[tuple[ComputeClass, ...], float]:
    """Return the classes, and the mean compute bucket of the devices."""
    timeline = build_timeline(traces)
    attribution = attribute(timeline)
    devices = summarise_devices(timeline, attribution)
    bucket = float(np.mean([device.buckets_ms["compute"] for device in devices]))
    return compute_classes(timeline, attribution, compute_work(timeline)), bucket


@given(
    st.lists(
        st.tuples(st.integers(0, 80), st.integers(1, 19), st.sampled_from(NAMES), st.sampled_from((7, 8, 9))),
        min_size=1,
    )
)
def test_classes_sum_to_the_bucket_however_kernels_overlap(kernels: list[tuple[int, int, str, int]]) -> None:
    builder = TraceBuilder()
    for _ in range(3):
        builder.step()
        for start, length, name, stream in kernels:
            builder.compute(start, start + length, name, stream=stream)
    classes, bucket = analysed([builder.build()])
    assert sum(row.ms_per_step for row in classes) == pytest.approx(bucket, rel=1e-9)


@pytest.mark.parametrize("job", ["clean", "tiny", "gloo_dataloader", "tensorflow"])
def test_classes_of_recordings_sum_to_the_bucket(job: str) -> None:
    classes, bucket = analysed(read_traces([TRACES / job]))
    assert sum(row.ms_per_step for row in classes) == pytest.approx(bucket, rel=1e-9)
    assert all(row.ms_per_step >= 0.01 * bucket for row in classes if row.kernel_class != "other")


def test_bound_of_a_class_is_that_of_most_of_its_time() -> None:
    builder = TraceBuilder()
    for _ in range(3):
        builder.step()
        builder.compute(0, 100, "ampere_sgemm_32x32_tn").compute(100, 130, "nvjet_sm90_tst_128")
        builder.compute(130, 170, "vectorized_elementwise_kernel").compute(170, 174, "softmax_warp_forward")
        builder.compute(174, 200, "x")
    bounds = {row.kernel_class: row.bound for row in analysed([builder.build()])[0]}
    assert bounds == {"matmul": "simt", "elementwise": "memory", "softmax": "launch", "other": None}
