"""Kernel names short enough for a line, with what tells one kernel from another left in.

A demangled C++ kernel name runs to thousands of characters, nearly all of them types. A person knows the kernel by its
own name and by the functors inside its template arguments, so those are what is kept:
`void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, ...MulFunctor<float> >, ...>(...)`
becomes `vectorized_elementwise_kernel<AUnaryFunctor, MulFunctor>`.
"""

from __future__ import annotations

import re

from gpudiag.model.sanitize import one_line

#: No name that a person could read is longer; a hostile one is cut before it is looked at.
_LONGEST = 4096
#: What PyTorch puts before the name of every function of a backward pass.
_BACKWARD = "autograd::engine::evaluate_function: "
_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\{[^{}]{0,200}\}")
#: The last part of each qualified name: `MulFunctor` of `at::native::MulFunctor`.
_LAST_NAME = re.compile(r"\b([A-Za-z_]\w*)\b(?!::)")
#: Types and plumbing: they are in nearly every name and tell nothing.
_NOISE = re.compile(
    r"(?:void|const|bool|char|short|int|long|unsigned|signed|float[248]?|double|half|auto|true|false|size_t|u?int\d+_t"
    r"|__half2?|__nv_\w+|BFloat16|Half|Float8\w*|complex|[aA]rray|tuple|pair|type|conditional|operator|lambda"
    r"|func_wrapper_t|Tensor(?:Base|Iterator(?:Base)?|Accessor|ListMetadata|ListScalarListMetadata)?|Scalar"
    r"|\w*OffsetCalculator|GenericPackedTensorAccessor|IndexBoundsCheck|ArrayRef|\w*PtrTraits|cudnnKernelDataType_t)"
)


def kernel_label(name: str, width: int) -> str:
    """A kernel's name in at most `width` characters.

    >>> kernel_label("void at::native::reduce_kernel<128, 4, at::ReduceOp<float, sum_functor<float> > >(int)", 60)
    'reduce_kernel<ReduceOp, sum_functor>'
    >>> kernel_label("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 60)
    'ncclDevKernel_AllReduce_Sum_f32_RING_LL'
    >>> kernel_label("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32", 30)
    'sm80_xmma_gemm_…size128x128x32'
    """
    text = _UNNAMED.sub("", plain_names(one_line(name[:_LONGEST])))
    text = _without_parameters(text)
    own, bracket, template = text.partition("<")
    words = own.split()
    own = words[-1].rsplit("::", 1)[-1] if bracket and words else text.removeprefix("void ").strip()
    telling = [word for word in dict.fromkeys(_LAST_NAME.findall(template)) if not _NOISE.fullmatch(word)]
    inside = telling[:1]
    for word in telling[1:]:
        if len(f"{own}<{', '.join([*inside, word])}>") <= width:
            inside.append(word)
    label = f"{own}<{', '.join(inside)}>" if inside else own
    return shorten_middle(label or one_line(name[:_LONGEST]), width)


def plain_names(text: str) -> str:
    """A text in which operators have the names that people know them by.

    >>> plain_names("before autograd::engine::evaluate_function: AddmmBackward0")
    'before AddmmBackward0'
    """
    return text.replace(_BACKWARD, "")


def shorten_middle(text: str, width: int) -> str:
    """`text` in at most `width` (at least 1) characters, its middle replaced by `…`."""
    if len(text) <= width:
        return text
    head = width // 2
    tail = width - 1 - head
    return f"{text[:head]}…{text[len(text) - tail :]}"


def _without_parameters(text: str) -> str:
    """Cut the parameter list: from the first parenthesis outside of `<…>` on, unless the name begins with it."""
    depth = 0
    for index, character in enumerate(text):
        depth = max(depth + (character == "<") - (character == ">"), 0)
        # `Memcpy HtoD (Pinned -> Device)` is no C++ name: what its parentheses hold tells.
        if character == "(" and depth == 0 and index and not text[index - 1].isspace():
            return text[:index]
    return text
