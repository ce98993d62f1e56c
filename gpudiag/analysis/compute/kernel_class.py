"""Classify a kernel by its name and by the operator that launched it.

Libraries name their kernels (`sm90_xmma_gemm_…`, `flash_fwd_kernel`, `Cijk_…`), and so do code generators: inductor
lists the fused operators (`triton_poi_fused_add_relu_3`), and XLA keeps the name of the operation. If a kernel's name
says nothing, or only how the kernel iterates (`elementwise_kernel`), its operator decides. The order of the patterns
matters, because names contain each other: `softmax` contains `max`, and a convolution of cuDNN is called
`implicit_gemm`.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

#: Class of a kernel by what it computes; `other` if its name and its operator do not say.
KernelClass = Literal[
    "matmul",
    "convolution",
    "attention",
    "normalization",
    "softmax",
    "elementwise",
    "reduction",
    "layout-conversion",
    "optimizer",
    "embedding",
    "random",
    "copy-kernel",
    "other",
]
KERNEL_CLASSES: tuple[KernelClass, ...] = get_args(KernelClass)
#: Patterns of kernel names and operators → class, in the order of evaluation. Names are lower case.
_PATTERNS: tuple[tuple[KernelClass, str], ...] = (
    (
        "layout-conversion",
        (
            r"nchwtonhwc|nhwctonchw|nchw_?to_?nhwc|nhwc_?to_?nchw|nchw2nhwc|nhwc2nchw|swapdimension|"
            r"tensor_transform|batched_?transpose|transpose_?(kernel|readwrite|fusion|nchw|cnhw|[0-9]|$)|"
            r"foldednhwc|shuffletensor|nchw32"
        ),
    ),
    (
        "optimizer",
        (
            r"fusedoptimizer|fused_?adam|fused_?sgd|adam(w)?_?(kernel|functor|math)|applyadam|applysgd|"
            r"applymomentum|applygradientdescent|applyrmsprop|applyadagrad|multi_tensor_(adam|sgd|lamb)|"
            r"lambfunctor|rmsprop|foreach_(addcdiv|addcmul|lerp)|optimizer"
        ),
    ),
    (
        "attention",
        (
            r"flash|fmha|attention|attn|mha_(fwd|bwd)|paged_?kv|sdpa|fused_mha|"
            r"cudnn_generated_fort_native_sdpa|mla_|batchprefill|batchdecode|merge_state"
        ),
    ),
    # A rotary embedding multiplies by sines and cosines; it looks nothing up.
    ("elementwise", r"rotary"),
    ("embedding", r"embedding|indexselectsmall|indexselectlarge|gather_?nd|compute_grad_weight"),
    (
        "convolution",
        (
            r"conv(?!ert)|fprop|dgrad|wgrad|winograd|implicit_?gemm|igemm|miopen(sp3|gcn)|"
            r"xdlops_(fwd|bwd|wrw)|scudnn|depthwise|im[23]?d?2?col|col2im|fft2d|fft_r2c|"
            r"computeb?offsetskernel"
        ),
    ),
    (
        "normalization",
        (
            r"batch_?norm|layer_?norm|group_?norm|rms_?norm|instance_?norm|\bbn_|_bn_|::bn|bnfwd|bnbwd|"
            r"miopenbatchnorm|gammabeta|cuapplylayernorm|rowwisemoments|computeinternalgradients|"
            r"computefusedparams|computebackwardfused|fusednorm|norm_(fwd|bwd)|ln_(fwd|bwd)|(^|_)norm_kernel|"
            r"softmax_?norm"
        ),
    ),
    ("softmax", r"soft_?max"),
    (
        "matmul",
        (
            r"gemm|gemv|cijk_|cublas|cutlass|nvjet|xmma|matmul|splitkreduce|s(884|1688|16816)|_mma|mfma|"
            r"dot_kernel|batched_dot|bmm|addmm|aten::(mm|dot|mv|linear|einsum|baddbmm|addbmm|addmv)\b|"
            r"triton_(tem|mm)|magma|hgemm|deep_gemm|einsum|^dot[._0-9]|batchmatmul|grouped_mm|marlin|mul_mat|"
            r"epilogue::impl"
        ),
    ),
    (
        "random",
        (
            r"dropout|distribution_|philox|random|bernoulli|curand|rand_|uniform|fill_?phil|threefry|"
            r"multinomial|masked_scale|_rand|rng"
        ),
    ),
    (
        "reduction",
        (
            r"reduce|reduction|triton_(red|per)|cunn_|nll_loss|cross_?entropy|argmax|argmin|topk|sort|scan|"
            r"cumsum|pool|norm_?kernel|lpnorm|cub::|rocprim|thrust|histogram|bincount|unique|atomic_adaptive|"
            r"softmargin|loss_(forward|backward)|l2loss|segment|biasadd_?grad|bias_?grad|biasnhwc|biasnchw|"
            r"aten::(sum|mean|max|min|norm|linalg_vector_norm)\b"
        ),
    ),
    (
        "copy-kernel",
        (
            r"direct_copy|catarray|copy_?kernel|copydevice|gather|scatter|index_?select|index_?put|"
            r"index_?kernel|indexing_backward|index_elementwise|copybuffer|kvcache|concat|split|slice|pack|"
            r"chunk|stack|(?<!un)roll|flip|pad|memcpy|memset|copy_|"
            r"aten::(copy_|cat|clone|contiguous|index|to|_to_copy|stack|repeat|constant_pad_nd|slice_backward)\b|"
            r"bfloat16_copy|float8_copy|triu|tril|unfold|upsample|resize|reverse|strided|tile|broadcast|"
            r"one_?hot"
        ),
    ),
    (
        "elementwise",
        (
            r"elementwise|eigenmetakernel|triton_poi|unrolled|vectorized|pointwise|functor|multi_tensor_apply|eltwise|loop_|"
            r"fusion|activation|rotary|rope|amp_update|gelu|silu|relu|sigmoid|tanh|swiglu|act_and_mul|"
            r"biasadd|bias_?act|add|mul|sub|div|sqrt|exp|pow|cast|convert|fill|where|compare|select|"
            r"op_tensor|optensor|op4d|op2d|op1d|_op_|arange|iota|clamp|unary|binary|assign"
        ),
    ),
)
_COMPILED = tuple((kernel_class, re.compile(pattern)) for kernel_class, pattern in _PATTERNS)
#: Names that say only how a kernel iterates; the operator says what it computes.
_GENERIC = re.compile(
    r"elementwise_kernel|unrolled_elementwise|vectorized_elementwise|elementwise_kernel_with_index|reduce_kernel"
    r"|multi_tensor_apply|^fusion|^loop_|^input_|^wrapped_|^void at::native::\(anonymous|^kernel|^subtensorop"
)
#: Patterns of operators. If a kernel's name is generic, the class of its operator replaces the class of its name.
_BY_OPERATOR: tuple[tuple[KernelClass, str], ...] = (
    ("optimizer", r"optimizer|_fused_(adam|sgd|adagrad)|resourceapply"),
    ("attention", r"scaled_dot_product|_flash_attention|_efficient_attention"),
    ("normalization", r"(batch|layer|group|rms|instance)_?norm|fusedbatchnorm"),
    ("softmax", r"softmax"),
    ("elementwise", r"rotary"),
    ("embedding", r"embedding"),
    ("random", r"dropout|bernoulli|rand|normal_|uniform_"),
    ("convolution", r"conv(olution|[123]d|_)(?!ert)"),
    ("copy-kernel", r"^aten::(_foreach_)?copy_$"),
)
_OPERATORS = tuple((kernel_class, re.compile(pattern)) for kernel_class, pattern in _BY_OPERATOR)
_CONVOLVES = re.compile(r"conv(olution|[123]d|_)(?!ert)")
#: Fused operators of inductor. The heaviest operator decides the class, so its pattern comes first.
_FUSED = re.compile(r"triton_(poi|per|red|tem|for|spl)_fused_(?P<operators>.+?)(_\d+)?$")
_FUSED_CLASSES: tuple[tuple[KernelClass, str], ...] = (
    ("matmul", r"(^|_)(mm|addmm|bmm|baddbmm)(_|$)"),
    ("convolution", r"conv(?!ert)"),
    ("attention", r"scaled_dot|flex_attention|attention"),
    ("optimizer", r"foreach|adam|sgd"),
    ("normalization", r"(batch|layer|group|rms|instance)_?norm|rsqrt.*mean|mean.*rsqrt"),
    ("softmax", r"softmax"),
    ("embedding", r"embedding"),
    ("random", r"dropout|inductor_random|rand|bernoulli"),
)
_FUSED_COMPILED = tuple((kernel_class, re.compile(pattern)) for kernel_class, pattern in _FUSED_CLASSES)
#: Kind in the name of a Triton kernel (pointwise, foreach, reductions, template) → class, if no fused operator decides.
_BY_TRITON_KIND: dict[str, KernelClass] = {
    "poi": "elementwise",
    "for": "elementwise",
    "per": "reduction",
    "red": "reduction",
    "spl": "reduction",
    "tem": "matmul",
}
#: Matrix kernels that compute in fp32 without tensor cores. Products with a vector are excluded: memory bounds them.
_SIMT = re.compile(
    r"ffma|simt_s|(^|[^a-z0-9])maxwell_s|(^|_)(pascal|volta|turing|ampere)_(sgemm|scudnn)|(^|_)sgemm_"
    r"|implicit_convolve_sgemm|(dgrad|wgrad_alg\d)_engine<float"
)
#: Matrix kernels that use tensor cores.
_TENSOR_CORE = re.compile(
    r"tensorop|tensor16x8|s(884|1688|16816|161616)|h(884|1688|16816)|xmma.*(tf32|f16|bf16|e4m3|e5m2)|nvjet|hmma|wgmma"
    r"|gmma|warpgroup|mfma|_mi\d+x\d+|tensor_?core|tf32|cijk_.*_(hb|bb|hhs|bbs|hss|bss|f8)|flash|fmha|imma|qgmma"
)


def kernel_class(name: str, operator: str = "", *, in_optimizer: bool = False) -> KernelClass:
    """Return the class of a kernel.

    Args:
        name: the kernel's name; on a CPU, the operator's name.
        operator: name of the innermost operator that launched the kernel; "" if unknown.
        in_optimizer: whether the kernel was launched within an optimizer's update.

    >>> kernel_class("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_ffma"), kernel_class("Cijk_Ailk_Bljk_SB_MT")
    ('matmul', 'matmul')
    >>> kernel_class("triton_per_fused_native_layer_norm_add_3"), kernel_class("triton_poi_fused_add_relu_0")
    ('normalization', 'elementwise')
    """
    lowered, launcher = name.lower(), operator.lower()
    by_name = _by_name(lowered, launcher)
    # Convolutions with kernels of one pixel run as matrix products of cuBLAS.
    if by_name == "matmul" and _CONVOLVES.search(launcher):
        return "convolution"
    # An update scales, copies and sums parameters with kernels that other operators use too.
    if in_optimizer and by_name not in {"matmul", "convolution", "attention", "normalization", "layout-conversion"}:
        return "optimizer"
    return by_name


def _by_name(name: str, operator: str) -> KernelClass:
    """Return the class by the kernel's name or, if the name is generic or unknown, by the operator (lower case)."""
    fused = _FUSED.search(name)
    if fused is not None:
        return _class_of_fused(fused["operators"], _BY_TRITON_KIND[fused[1]])
    if operator and _GENERIC.search(name):
        by_operator = _first(_OPERATORS, operator)
        if by_operator is not None:
            return by_operator
    by_pattern = _first(_COMPILED, _without_arguments(name))
    if by_pattern is None and operator:
        by_pattern = _first(_COMPILED, operator)
    return "other" if by_pattern is None else by_pattern


def _class_of_fused(operators: str, otherwise: KernelClass) -> KernelClass:
    """Return the class of a compiled kernel by the operators in its name."""
    return _first(_FUSED_COMPILED, operators) or otherwise


def _first(patterns: tuple[tuple[KernelClass, re.Pattern[str]], ...], text: str) -> KernelClass | None:
    return next((kernel_class for kernel_class, pattern in patterns if pattern.search(text)), None)


def _without_arguments(name: str) -> str:
    """Return a template's demangled name without arguments: their types ("const at::ReduceOp") name no computation."""
    end = name.rfind(">(")
    if end > 0:
        return name[: end + 1]
    return name


def tensor_core(name: str) -> bool | None:
    """Return True if a matrix kernel uses tensor cores, False if fp32 units, and None if its name does not say.

    >>> tensor_core("cutlass_80_simt_sgemm_256x128_8x4_nt_align1"), tensor_core("cutlass_80_tensorop_s1688gemm_256x64")
    (False, True)
    >>> tensor_core("gemm")
    """
    lowered = name.lower()
    if _SIMT.search(lowered):
        return False
    return True if _TENSOR_CORE.search(lowered) else None


#: Kernels that do the whole update of all parameters at once.
_FUSED_UPDATE = re.compile(
    r"fusedoptimizer|fused_?(adam|sgd|adagrad|lamb)|multi_tensor_(adam|sgd|lamb)|apply(adam|momentum)"
)
#: Kernels that a compiler generated.
_COMPILED_KERNEL = re.compile(r"^triton_|fusion|^wrapped_|^(loop|input)_")
_BATCHED = re.compile(r"^aten::(bmm|baddbmm)")


def is_fused(name: str) -> bool:
    """Return whether a kernel already does the work of several operations: fused updates, compiled kernels.

    >>> is_fused("triton_poi_fused_add_relu_0"), is_fused("vectorized_elementwise_kernel")
    (True, False)
    """
    lowered = name.lower()
    return bool(_COMPILED_KERNEL.search(lowered) or _FUSED_UPDATE.search(lowered))


def is_batched(operator: str) -> bool:
    """Return whether an operator multiplies many small matrices, as attention does."""
    return bool(_BATCHED.search(operator))


#: Reductions within each row of a tensor: a compiler can fuse operations on the result into the same kernel. All other
#: reductions are across rows: operations on the result need a second kernel.
_BY_ROW = re.compile(r"soft_?max|layer_?norm|rms_?norm|gammabeta", re.IGNORECASE)

#: PyTorch's own kernels of depthwise convolutions on contiguous tensors. cuDNN computes on channels-last tensors.
_DEPTHWISE = re.compile(r"conv_depthwise[23]d")


def is_contiguous_depthwise(name: str) -> bool:
    """Return whether a kernel computes a depthwise convolution on contiguous tensors.

    >>> is_contiguous_depthwise("at::native::conv_depthwise2d_forward_kernel<3, float, int>")
    True
    """
    return _DEPTHWISE.search(name) is not None


def is_across_rows(class_name: KernelClass, name: str, operator: str) -> bool:
    """Return whether a kernel that `operator` launched reduces a tensor across the tensor's rows.

    >>> is_across_rows("normalization", "bn_fw_tr_1C11", "aten::cudnn_batch_norm")
    True
    >>> is_across_rows("normalization", "vectorized_layer_norm_kernel", "aten::native_layer_norm")
    False
    """
    return class_name in {"normalization", "reduction"} and not (_BY_ROW.search(name) or _BY_ROW.search(operator))
