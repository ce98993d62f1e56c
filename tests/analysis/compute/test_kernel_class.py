"""Test the classes of kernels by names in recordings of PyTorch, TensorFlow, JAX and inductor (NVIDIA and AMD)."""

from __future__ import annotations

import pytest

from gpudiag.analysis.compute.kernel_class import KernelClass, is_batched, is_fused, kernel_class, tensor_core
from gpudiag.analysis.compute.work import compiles

NATIVE = "void at::native::"
KERNELS: tuple[tuple[str, str, KernelClass], ...] = (
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_ffma_execute_kernel__5x_cublas", "", "matmul"),
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nt_align1>(Params)", "aten::mm", "matmul"),
    ("nvjet_sm90_tst_128x256_64x4_4x2_h_bz_coopA_NTN", "aten::addmm", "matmul"),
    ("Cijk_Ailk_Bljk_BBS_BH_MT256x128x64_MI16x16x16x1_SN", "aten::mm", "matmul"),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::cublasSplitKParams<float>)", "", "matmul"),
    # A convolution of one pixel is a matrix product of cuBLAS.
    ("sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize128x128x32", "aten::cudnn_convolution", "convolution"),
    ("sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32", "", "convolution"),
    ("cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1", "", "convolution"),
    ("miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_stride1", "", "convolution"),
    ("void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float>(x)", "", "layout-conversion"),
    ("batched_transpose_32x32_half", "aten::miopen_convolution", "layout-conversion"),
    # MIOpen clears and casts tensors around a convolution.
    ("SubTensorOpWithCastTensor1d", "aten::convolution_backward", "convolution"),
    ("SubTensorOpWithScalar1d", "", "elementwise"),
    ("void tensorflow::functor::SwapDimension1And2InTensor3UsingTiles<unsigned int>(x)", "", "layout-conversion"),
    ("input_transpose_fusion.kd", "", "layout-conversion"),
    ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>(x)", "", "attention"),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(AttentionKernel<float>::Params)", "", "attention"),
    ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512>(cudnnTensorStruct)", "", "normalization"),
    (f"{NATIVE}(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)", "", "normalization"),
    ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 9>(float*)", "", "softmax"),
    (f"{NATIVE}(anonymous namespace)::cunn_SoftMaxForward<4, float>(float*)", "aten::_log_softmax", "softmax"),
    (f"{NATIVE}vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)", "aten::add_", "elementwise"),
    (f"{NATIVE}reduce_kernel<512, 1, at::native::ReduceOp<float, MeanOps<float>>>(x)", "aten::mean", "reduction"),
    (f"{NATIVE}(anonymous namespace)::max_pool_forward_nchw<float, int>(int)", "", "reduction"),
    (f"{NATIVE}(anonymous namespace)::fused_dropout_kernel_vec<float, float>(x)", "", "random"),
    (f"{NATIVE}(anonymous namespace)::embedding_backward_feature_kernel<float>(x)", "", "embedding"),
    (f"{NATIVE}elementwise_kernel<128, 2, direct_copy_kernel_cuda(TensorIterator)>(int)", "aten::copy_", "copy-kernel"),
    (f"{NATIVE}(anonymous namespace)::CatArrayBatchedCopy<float>(x)", "aten::cat", "copy-kernel"),
    (f"{NATIVE}multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdam>(x)", "", "optimizer"),
    (f"{NATIVE}elementwise_kernel_manual_unroll<128, 8, gpu_kernel_impl<MulFunctor>>(int)", "aten::div", "elementwise"),
    (f"{NATIVE}unrolled_elementwise_kernel<at::native::CUDAFunctor_add<float>>(int)", "aten::add", "elementwise"),
    (f"{NATIVE}unrolled_elementwise_kernel<direct_copy_kernel_cuda(x)>(int)", "aten::copy_", "copy-kernel"),
    (f"{NATIVE}elementwise_kernel_manual_unroll", "aten::copy_", "copy-kernel"),
    (f"{NATIVE}(anonymous namespace)::multi_tensor_apply_kernel", "aten::_foreach_copy_", "copy-kernel"),
    (f"{NATIVE}roll_cuda_kernel<float>(float const*)", "aten::roll", "copy-kernel"),
    ("void rotary_embedding_kernel<c10::BFloat16, true>(x)", "sgl_kernel::rotary_embedding", "elementwise"),
    (f"{NATIVE}elementwise_kernel<128, 2, BinaryFunctor>(int)", "sgl_kernel::rotary_embedding", "elementwise"),
    ("triton_poi_fused_add_relu_0", "", "elementwise"),
    ("triton_red_fused_sum_4", "", "reduction"),
    ("triton_per_fused_native_layer_norm_add_3", "", "normalization"),
    ("triton_tem_fused_mm_7", "", "matmul"),
    ("triton_poi_fused_native_dropout_1", "", "random"),
    ("loop_convert_fusion", "", "elementwise"),
    ("main_kernel", "", "other"),
)


@pytest.mark.parametrize(("name", "operator", "expected"), KERNELS)
def test_kernel_name_gives_its_class(name: str, operator: str, expected: KernelClass) -> None:
    assert kernel_class(name, operator) == expected


def test_any_simple_kernel_of_an_update_belongs_to_the_optimizer() -> None:
    name = f"{NATIVE}vectorized_elementwise_kernel<4, at::native::BUnaryFunctor<float>>(int)"
    assert kernel_class(name, "aten::mul_") == "elementwise"
    assert kernel_class(name, "aten::mul_", in_optimizer=True) == "optimizer"
    assert kernel_class("nvjet_sm90_tst_128x256", "aten::mm", in_optimizer=True) == "matmul"  # as in Muon and Shampoo


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cutlass_80_simt_sgemm_256x128_8x4_nt_align1", False),
        ("ampere_sgemm_32x32_sliced1x4_tn", False),
        ("void implicit_convolve_sgemm<float, float, 128, 6, 7>", False),
        ("cutlass_80_tensorop_s1688gemm_256x64_16x4_nt_align4", True),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize128x128x32_warpgroupsize1x1x1", True),
        ("nvjet_sm90_tst_128x256_64x4", True),
        ("Cijk_Ailk_Bljk_BBS_BH_MT256x128x64_MI16x16x16x1_SN", True),
        ("gemm", None),
        # A product with a vector is memory-bound, so it does not matter which units multiply.
        ("void gemv2T_kernel_val<int, int, float, float>", None),
    ],
)
def test_name_says_whether_a_product_uses_tensor_cores(name: str, expected: bool | None) -> None:
    assert tensor_core(name) is expected


def test_compiled_kernels_and_fused_updates_are_fused() -> None:
    assert is_fused("triton_poi_fused_add_relu_0")
    assert is_fused("multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>>")
    assert not is_fused("multi_tensor_apply_kernel<TensorListMetadata<3>>")
    assert is_batched("aten::bmm")
    assert not is_batched("aten::mm")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_compile.compile_inner (dynamo_timed)", True),
        ("entire_frame_compile", True),
        ("backend_compile", True),
        ("XlaCompile:0", True),
        ("TorchDynamo Cache Lookup", False),
        ("CompiledFunction", False),
        ("Torch-Compiled Region: 0/0", False),
        ("aten::addmm", False),
    ],
)
def test_lookups_of_compiled_code_are_no_compilations(name: str, expected: bool) -> None:
    assert compiles(name) is expected
