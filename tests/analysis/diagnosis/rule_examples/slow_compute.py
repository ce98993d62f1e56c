"""Provide example jobs in which rule `slow-compute` fires or is silent."""

from __future__ import annotations

from tests.analysis.diagnosis.rule_examples.jobs import DDP, Job, Piece, kernels, named

H100 = "NVIDIA H100 80GB HBM3"
SIMT = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4"
TF32 = "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x32_warpgroupsize1x1x1_cublas"
MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, MulFunctor<float>>>(int)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
FOREACH = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<3>, PointwiseOp<float>>(int)"
)
FUSED = (
    "void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float>>(int)"
)
CONVERT = "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true>(int)"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>(float*)"


def product(ms: float, name: str = TF32) -> Piece:
    """Multiply matrices in a linear layer with kernels called `name`."""
    return named(ms, name, operator="aten::addmm", count=10)


def attention() -> tuple[Piece, ...]:
    """Run one eager attention: products of 2 ms, and 4 ms of kernels on scores."""
    return (
        named(1, TF32, operator="aten::bmm", count=1),
        named(1, MUL, operator="aten::mul", count=1),
        named(2, SOFTMAX, operator="aten::_softmax", count=1),
        named(1, MUL, operator="aten::mul", count=1),
        named(1, TF32, operator="aten::bmm", count=1),
    )


FIRES: tuple[tuple[str, Job], ...] = (
    ("matrix products in fp32 on an H100", Job(ranks=1, step=(product(20, SIMT),), device_name=H100)),
    (
        "half of the convolutions' time converts layouts",
        Job(ranks=1, step=tuple(named(1, name, operator="aten::cudnn_convolution") for name in (CONVERT, TF32)) * 8),
    ),
    ("eager attention", Job(ranks=1, step=attention() * 4)),
    (
        "an update of 20 foreach kernels",
        Job(ranks=1, step=(product(20), named(6, FOREACH, in_update=True)), device_name=H100),
    ),
    (
        "a queue of 4,000 kernels of 2 µs",
        Job(ranks=1, step=(product(10), named(8, TF32, operator="aten::mm", count=4000, launch_us=0.5))),
    ),
    ("chains of elementwise kernels", Job(ranks=1, step=(product(10), named(8, ADD, count=16)))),
)

SILENT: tuple[tuple[str, Job], ...] = (
    ("matrix products on tensor cores", Job(ranks=1, step=(product(20),), device_name=H100)),
    ("fp32 on a GPU without faster units", Job(ranks=1, step=(product(20, SIMT),), device_name="Tesla P40")),
    ("a fused update", Job(ranks=1, step=(product(20), named(6, FUSED, in_update=True, count=6)), device_name=H100)),
    (
        "a host that sets the pace: faster products save nothing",
        Job(ranks=1, step=(named(1, SIMT, operator="aten::mm", count=200, launch_us=80),), device_name=H100),
    ),
    ("kernels of unknown names", Job(ranks=4, step=(kernels(3), *DDP))),
)
