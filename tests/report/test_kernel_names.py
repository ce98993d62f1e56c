from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.report.kernel_names import kernel_label, shorten_middle

#: Names from real traces (PyTorch 2.11, H200) and their labels.
REAL = [
    (
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, float, float, "
            "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul> >(int, at::native::AUnaryFunctor<"
            "float, float, float, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul>)"
        ),
        "vectorized_elementwise_kernel<AUnaryFunctor, MulFunctor>",
    ),
    (
        (
            "void at::native::vectorized_elementwise_kernel<8, at::(anonymous namespace)::launch_clamp_scalar("
            "at::TensorIteratorBase&, c10::Scalar, c10::Scalar, at::detail::ClampLimits)::{lambda()#1}::operator"
            "()() const::{lambda()#9}::operator()() const::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >(int)"
        ),
        "vectorized_elementwise_kernel<launch_clamp_scalar, ClampLimits>",
    ),
    (
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_nn_align2>("
            "cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_nn_align2::Params)"
        ),
        "Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_nn_align2>",
    ),
    (
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    ),
    ("nvjet_sm90_tst_64x32_64x16_2x4_h_bz_NTT", "nvjet_sm90_tst_64x32_64x16_2x4_h_bz_NTT"),
    ("aten::addmm", "aten::addmm"),
    ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
]


@pytest.mark.parametrize(("name", "label"), REAL)
def test_real_kernel_names_are_shortened(name: str, label: str) -> None:
    assert kernel_label(name, 80) == label


@given(st.text(), st.integers(8, 200))
def test_any_name_fits_its_width(name: str, width: int) -> None:
    assert len(kernel_label(name, width)) <= width


@given(st.text(alphabet="a<>(),: {}#", max_size=200), st.integers(8, 60))
def test_unbalanced_brackets_do_not_fail(name: str, width: int) -> None:
    assert len(kernel_label(name, width)) <= width


def test_label_of_a_megabyte_name_is_made_quickly() -> None:
    assert kernel_label("a::<({" * 200_000, 40)


@given(st.text(min_size=1), st.integers(1, 50))
def test_shortening_keeps_both_ends(text: str, width: int) -> None:
    short = shorten_middle(text, width)
    assert len(short) == min(len(text), width)
    if len(text) > width >= 3:
        assert short[0] == text[0]
        assert short[-1] == text[-1]
