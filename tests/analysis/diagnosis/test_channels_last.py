"""Test the estimated savings of channels-last tensors in a job that is limited by the device."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.model.analysis import Finding
from gpudiag.model.event import NO_NUMBER, EventKind, OperatorWork, Trace
from tests.analysis.diagnosis.cases import case_of
from tests.analysis.diagnosis.rule_examples.jobs import Job, Piece, named
from tests.analysis.diagnosis.rule_examples.slow_compute import TF32

CONVERSION = "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true>(int)"
CUDNN_NORM = "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(int)"
OWN_NORM = "void at::native::batch_norm_transform_input_kernel<float, float, float, true, int>(int)"
LAYER_NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)"
DEPTHWISE = "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>(int)"
#: Peak bandwidth of the memory in bytes/ms.
PEAK = 3_350e6


def kernel(ms: float, name: str, operator: str) -> Piece:
    return named(ms, name, operator=operator, count=1)


def traces_of(*slow: Piece) -> tuple[Trace, ...]:
    step = (kernel(5, TF32, "aten::cudnn_convolution"), kernel(1, CONVERSION, "aten::cudnn_convolution"), *slow)
    return Job(ranks=1, step=step * 2, device_name="NVIDIA H100 80GB HBM3").traces()


def with_bytes(trace: Trace, operator: str, moved_bytes: float) -> Trace:
    """Return the trace in which each call of `operator` moves `moved_bytes`."""
    events = trace.events
    rows = np.array(
        [row for row in events.rows_of(EventKind.OPERATOR).tolist() if events.names[events.name[row]] == operator]
    )
    work = OperatorWork(
        row=rows,
        flops=np.full(len(rows), NO_NUMBER),
        moved_bytes=np.full(len(rows), int(moved_bytes)),
        precision=np.full(len(rows), NO_NUMBER, np.int8),
    )
    return msgspec.structs.replace(trace, operator_work=work)


def found(traces: tuple[Trace, ...]) -> Finding:
    findings = diagnose(case_of(traces)).findings
    return next(finding for finding in findings if finding.cause == "layout-conversion")


def beyond_conversions(traces: tuple[Trace, ...]) -> float:
    """Return the savings in ms beyond those of the layout conversions that every trace here has."""
    return (found(traces).recoverable_ms_per_step or 0) - (found(traces_of()).recoverable_ms_per_step or 0)


def test_depthwise_convolutions_on_contiguous_tensors_are_shorter() -> None:
    finding = found(traces_of(kernel(4, DEPTHWISE, "aten::_conv_depthwise2d")))
    assert finding.evidence["depthwise_ms_per_step"] == pytest.approx(8, rel=0.01)
    saved_ms = beyond_conversions(traces_of(kernel(4, DEPTHWISE, "aten::_conv_depthwise2d")))
    assert saved_ms == pytest.approx(0.7 * 8, rel=0.05)


@pytest.mark.parametrize(("reached", "remains"), [(0.11, 0.2), (0.33, 0.6), (0.9, 1.0)])
def test_cudnn_normalization_is_as_much_shorter_as_it_is_slower_than_the_memory(reached: float, remains: float) -> None:
    (trace,) = traces_of(kernel(4, CUDNN_NORM, "aten::cudnn_batch_norm"))
    saved_ms = beyond_conversions((with_bytes(trace, "aten::cudnn_batch_norm", reached * 4 * PEAK),))
    assert saved_ms == pytest.approx((1 - remains) * 8, rel=0.05, abs=0.05)


def test_other_normalizations_and_unknown_shapes_have_the_usual_share() -> None:
    (own,) = traces_of(kernel(4, OWN_NORM, "aten::native_batch_norm"))
    bytes_known = with_bytes(own, "aten::native_batch_norm", 0.1 * 4 * PEAK)
    unknown = traces_of(kernel(4, CUDNN_NORM, "aten::cudnn_batch_norm"))
    assert beyond_conversions((bytes_known,)) == pytest.approx(0.35 * 8, rel=0.05)
    assert beyond_conversions(unknown) == pytest.approx(0.35 * 8, rel=0.05)


def test_layer_normalization_is_not_shorter() -> None:
    assert beyond_conversions(traces_of(kernel(4, LAYER_NORM, "aten::native_layer_norm"))) == pytest.approx(0, abs=0.05)
