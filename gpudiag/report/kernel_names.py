"""Shorten kernel names to one line.

A demangled C++ kernel name has up to thousands of characters, nearly all of them types. The kernel's own name and the
functors in its template arguments are kept, because they identify it. Example: `void
at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, ...MulFunctor<float> >, ...>(...)` becomes
`vectorized_elementwise_kernel<AUnaryFunctor, MulFunctor>`.
"""

from __future__ import annotations

import re

from gpudiag.model.sanitize import one_line

#: Maximum length of a name that is parsed; longer names are cut, because they may be hostile.
_LONGEST = 4096
#: PyTorch's prefix of every backward function.
_BACKWARD = "autograd::engine::evaluate_function: "
_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\{[^{}]{0,200}\}")
#: The last part of each qualified name: `MulFunctor` of `at::native::MulFunctor`.
_LAST_NAME = re.compile(r"\b([A-Za-z_]\w*)\b(?!::)")
#: Types and helper classes that occur in nearly every name.
_NOISE = re.compile(
    r"(?:void|const|bool|char|short|int|long|unsigned|signed|float[248]?|double|half|auto|true|false|size_t|u?int\d+_t"
    r"|__half2?|__nv_\w+|BFloat16|Half|Float8\w*|complex|[aA]rray|tuple|pair|type|conditional|operator|lambda"
    r"|func_wrapper_t|Tensor(?:Base|Iterator(?:Base)?|Accessor|ListMetadata|ListScalarListMetadata)?|Scalar"
    r"|\w*OffsetCalculator|GenericPackedTensorAccessor|IndexBoundsCheck|ArrayRef|\w*PtrTraits|cudnnKernelDataType_t)"
)


def kernel_label(name: str, width: int) -> str:
    """Return a kernel's name in at most `width` characters.

    >>> kernel_label("void at::native::reduce_kernel<128, 4, at::ReduceOp<float, sum_functor<float> > >(int)", 60)
    'reduce_kernel<ReduceOp, sum_functor>'
    >>> kernel_label("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 60)
    'ncclDevKernel_AllReduce_Sum_f32_RING_LL'
    >>> kernel_label("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32", 30)
    'sm80_xmma_gemm_…size128x128x32'
    """
    text = _UNNAMED.sub("", plain_names(one_line(name[:_LONGEST])))
    text = _without_parameters(text)
    function, bracket, template = text.partition("<")
    words = function.split()
    # The last word of a template function is its qualified name; the words before it are the type of its result.
    function = words[-1].rsplit("::", 1)[-1] if bracket and words else text.removeprefix("void ").strip()
    informative = [word for word in dict.fromkeys(_LAST_NAME.findall(template)) if not _NOISE.fullmatch(word)]
    inside = informative[:1]  # the first word stays even if too long, because it is usually the functor
    for word in informative[1:]:
        if len(f"{function}<{', '.join([*inside, word])}>") <= width:
            inside.append(word)
    label = f"{function}<{', '.join(inside)}>" if inside else function
    return shorten_middle(label or one_line(name[:_LONGEST]), width)


def plain_names(text: str) -> str:
    """Return text without PyTorch's prefix of backward operators.

    >>> plain_names("before autograd::engine::evaluate_function: AddmmBackward0")
    'before AddmmBackward0'
    """
    return text.replace(_BACKWARD, "")


def shorten_middle(text: str, width: int) -> str:
    """Return `text` in at most `width` (at least 1) characters, its middle replaced by `…`."""
    if len(text) <= width:
        return text
    head = width // 2
    tail = width - 1 - head
    return f"{text[:head]}…{text[len(text) - tail :]}"


def _without_parameters(text: str) -> str:
    """Cut the parameter list, which begins at the first parenthesis outside `<…>` that follows a name."""
    depth = 0
    for index, character in enumerate(text):
        # At depth 0, `>` closes nothing, as in `->`.
        depth = max(depth + (character == "<") - (character == ">"), 0)
        # `Memcpy HtoD (Pinned -> Device)` is no C++ name; keep its parentheses.
        if character == "(" and depth == 0 and index and not text[index - 1].isspace():
            return text[:index]
    return text
