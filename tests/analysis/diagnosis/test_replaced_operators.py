"""Test the savings of host work where one operator replaces several.

The true savings are the savings that a run of the job with fused operators shows. All kernels take 1 µs, so that the
host determines the step time.
"""

from __future__ import annotations

import pytest

from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.model.analysis import Finding
from tests.analysis.diagnosis.cases import case_of
from tests.analysis.diagnosis.rule_examples.jobs import Job, Piece, named, python
from tests.analysis.diagnosis.rule_examples.slow_compute import ADD, MUL, SOFTMAX, TF32
from tests.timeline_builder import BACKWARD, TraceBuilder

NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)"
BATCH_NORM = "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(int)"
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(int)"
CAST = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(TensorIterator&)>(int)"


def short(name: str, operator: str, launch_us: float = 60) -> Piece:
    """Launch a kernel of 1 µs by an operator that takes `launch_us`."""
    return named(0.001, name, operator=operator, count=1, launch_us=launch_us)


def causes(traces: tuple[object, ...]) -> dict[str | None, Finding]:
    findings = diagnose(case_of(traces)).findings  # type: ignore[arg-type]  # traces of both builders
    return {finding.cause: finding for finding in findings if finding.code == "slow-compute"}


def mean(job: Job) -> float:
    times = job.step_times_ms()
    return sum(times) / len(times)


LINEAR = short(TF32, "aten::addmm")
#: Operators without kernels also run between the first product and the last product.
EAGER = (
    short(TF32, "aten::bmm"),
    python(0.01, "aten::_unsafe_view"),
    short(MUL, "aten::mul"),
    short(SOFTMAX, "aten::_softmax"),
    short(CAST, "aten::copy_"),
    python(0.01, "aten::expand"),
    short(TF32, "aten::bmm"),
)
FUSED = (short(FLASH, "aten::_flash_attention_forward"),)


def job_of(*layer: Piece, layers: int = 24, recording_ns: int = 0) -> Job:
    return Job(ranks=1, step=(LINEAR, *layer, LINEAR) * layers, recording_ns=recording_ns, device_name="NVIDIA H100")


@pytest.mark.parametrize("recording_ns", [0, 1_000])
def test_fused_attention_saves_all_operators_but_one_if_the_host_is_slower(recording_ns: int) -> None:
    found = causes(job_of(*EAGER, recording_ns=recording_ns).traces())["eager-attention"]
    saved_ms = mean(job_of(*EAGER)) - mean(job_of(*FUSED))
    assert found.recoverable_ms_per_step == pytest.approx(saved_ms, rel=0.15)
    assert found.evidence["savings_ms_low"] < saved_ms * 1.05
    assert found.evidence["savings_ms_high"] >= saved_ms * 0.85


def test_operators_save_nothing_if_the_device_is_slower() -> None:
    """Kernels take 20 times as long as their launches, so only kernel times count."""
    eager = (
        named(1, TF32, operator="aten::bmm", count=1),
        named(1, MUL, operator="aten::mul", count=1),
        named(1, SOFTMAX, operator="aten::_softmax", count=1),
        named(1, TF32, operator="aten::bmm", count=1),
    )
    found = [
        causes(Job(ranks=1, step=(*eager, python(work_ms, "aten::view")) * 8).traces())["eager-attention"]
        for work_ms in (0.001, 0.1)
    ]
    assert found[0].recoverable_ms_per_step == pytest.approx(found[1].recoverable_ms_per_step, rel=0.02)
    # The kernels on scores take 16 ms, and fused attention adds one sixth of the 16 ms of products.
    assert found[0].recoverable_ms_per_step == pytest.approx(16 - 16 / 6, rel=0.05)


@pytest.mark.parametrize(
    ("chain", "compiled"),
    [
        # A compiled layer norm reads its row once, so that the casts become part of it.
        (
            (short(ADD, "aten::add"), short(NORM, "aten::native_layer_norm"), short(CAST, "aten::copy_")),
            (short("triton_per_fused_add_native_layer_norm_0", "triton"),),
        ),
        # A compiled batch norm ends before a second kernel uses the result.
        (
            (short(BATCH_NORM, "aten::cudnn_batch_norm"), short(ADD, "aten::relu_"), short(MUL, "aten::mul")),
            (short("triton_red_fused_batch_norm_0", "triton"), short("triton_poi_fused_add_relu_0", "triton")),
        ),
        ((short(MUL, "aten::mul"), short(ADD, "aten::add")), (short("triton_poi_fused_add_mul_0", "triton"),)),
    ],
    ids=["layer norm", "batch norm", "elementwise"],
)
def test_compiler_saves_operators_of_fused_kernels(chain: tuple[Piece, ...], compiled: tuple[Piece, ...]) -> None:
    found = causes(job_of(*chain).traces())["unfused-elementwise"]
    saved_ms = mean(job_of(*chain)) - mean(job_of(*compiled))
    assert found.recoverable_ms_per_step == pytest.approx(saved_ms, rel=0.2)
    assert found.evidence["savings_ms_low"] <= found.recoverable_ms_per_step <= found.evidence["savings_ms_high"]


def test_batch_norm_with_one_use_saves_no_operator() -> None:
    chain = (short(BATCH_NORM, "aten::cudnn_batch_norm"), short(ADD, "aten::relu_"))
    assert "unfused-elementwise" not in causes(job_of(*chain).traces())


def test_other_work_of_the_host_within_a_chain_stays() -> None:
    """Between two operators of a chain, the host may log or compile; compiling the chain saves only the usual time."""
    chain = (short(MUL, "aten::mul"), short(ADD, "aten::add"))
    logging = (chain[0], python(0.3, "user_annotation"), chain[1])
    plain, logged = (causes(job_of(*layer).traces())["unfused-elementwise"] for layer in (chain, logging))
    assert logged.recoverable_ms_per_step == pytest.approx(plain.recoverable_ms_per_step, rel=0.1)


def test_causes_of_a_compiler_save_together_at_most_the_time_above_the_device() -> None:
    """Fused attention alone makes the device limit the step, and so does the compiled chain alone."""
    chain = (short(ADD, "aten::add"), short(NORM, "aten::native_layer_norm"), short(CAST, "aten::copy_"))
    device = named(0.3, TF32, operator="aten::addmm", count=1, launch_us=10)
    found = causes(Job(ranks=1, step=(device, *EAGER, LINEAR, *chain) * 24).traces())
    both = [found[cause] for cause in ("eager-attention", "unfused-elementwise")]
    together = both[0].evidence["savings_ms_compiled"]
    assert together == both[1].evidence["savings_ms_compiled"]
    assert max(finding.recoverable_ms_per_step or 0 for finding in both) <= together
    assert together < 0.95 * sum(finding.recoverable_ms_per_step or 0 for finding in both)


def passes_with_nested_operators(step: TraceBuilder) -> TraceBuilder:
    """Run ten layers of attention forward, and backward in autograd's thread.

    A layer's attention takes 100 µs, from the begin of its first product to the end of its second, which takes 20 µs.
    The first product copies its operands before, as matmul does.
    """
    for thread, first, outer in ((1, 0, "aten::matmul"), (BACKWARD, 1500, "evaluate_function: BmmBackward0")):
        step.by(thread)
        for begin in range(first, first + 1500, 150):
            step.operator(begin, begin + 40, outer).operator(begin + 2, begin + 10, "aten::copy_")
            step.compute(begin + 12, begin + 13, CAST, launch=(begin + 4, begin + 8))
            step.operator(begin + 20, begin + 35, "aten::bmm")
            step.compute(begin + 32, begin + 33, TF32, launch=(begin + 25, begin + 30))
            step.operator(begin + 50, begin + 70, "aten::softmax")
            step.compute(begin + 62, begin + 63, SOFTMAX, launch=(begin + 55, begin + 60))
            step.operator(begin + 80, begin + 100, outer).operator(begin + 82, begin + 98, "aten::bmm")
            step.compute(begin + 92, begin + 93, TF32, launch=(begin + 85, begin + 90))
            step.operator(begin + 105, begin + 145, "aten::linear")
            step.compute(begin + 130, begin + 131, TF32, launch=(begin + 120, begin + 125))
    return step.by(1)


def test_savings_extend_to_the_outermost_operators_of_both_passes() -> None:
    trace = TraceBuilder().steps(6, 3000, passes_with_nested_operators).build()
    found = causes((trace,))["eager-attention"]
    # 20 layers save 80 of 100 µs; the job itself takes less than the recorded times, which include profiler overhead.
    assert 20 * 0.08 * 0.8 < (found.recoverable_ms_per_step or 0) <= 20 * 0.08
