"""Test which kernels belong to an optimizer's update."""

from __future__ import annotations

import pytest

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.compute.work import compute_classes, compute_work
from gpudiag.analysis.timeline import build_timeline
from tests.timeline_builder import TraceBuilder

COPY = "bfloat16_copy_kernel_cuda"


def optimizer_ms(builder: TraceBuilder) -> float:
    """Return the time of class `optimizer` in ms per step."""
    timeline = build_timeline([builder.build()])
    classes = compute_classes(timeline, attribute(timeline), compute_work(timeline))
    return sum(row.ms_per_step for row in classes if row.kernel_class == "optimizer")


@pytest.mark.parametrize("closure", [False, True])
def test_forward_and_backward_in_an_optimizers_closure_are_no_update(closure: bool) -> None:
    builder = TraceBuilder()
    for _ in range(4):
        builder.step()
        builder.optimizer(2 if closure else 600, 900)
        builder.operator(5, 20, "aten::copy_").compute(10, 200, COPY, launch=(6, 8))  # forward
        builder.by(77).operator(250, 300, "aten::copy_").compute(310, 500, COPY, launch=(260, 270)).by(1)  # backward
        builder.operator(610, 650, "aten::_foreach_mul_").compute(
            660, 760, "multi_tensor_apply_kernel", launch=(620, 630)
        )
        builder.operator(900, 990)
    assert optimizer_ms(builder) == pytest.approx(0.1)
