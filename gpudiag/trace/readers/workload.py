"""Kernels that only training runs, by the names that libraries of all frameworks give them."""

from __future__ import annotations

import re
from functools import cache

#: A fused optimizer, and gradients of weights, which no forward pass computes.
_OPTIMIZER = re.compile(
    r"(?:multi_tensor|fused|foreach)\w*.*(?:adam|sgd|lamb(?!da)|adagrad|rmsprop|adafactor|\blion|muon)"
    r"|(?:adam|sgd|lamb(?!da)|adagrad)_?\w*(?:kernel|functor)|wgrad|bprop|Resource(?:Sparse)?Apply",
    re.IGNORECASE,
)
#: Backward kernels. The forward pass of a transposed convolution runs those of a gradient of data, so that these prove
#: nothing where operators say that there was no backward pass.
_BACKWARD = re.compile(r"dgrad|[Bb]ackward|(?<![a-z])bwd|Bwd")


@cache
def is_optimizer_kernel(name: str) -> bool:
    """Return whether a kernel updates weights or computes their gradients.

    >>> is_optimizer_kernel("multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>")
    True
    >>> is_optimizer_kernel("multi_tensor_apply_kernel<TensorListMetadata<2>, Copy<float, float>>")
    False
    """
    return _OPTIMIZER.search(name) is not None


@cache
def is_training_kernel(name: str) -> bool:
    """Return whether a kernel is of a backward pass or an update.

    >>> is_training_kernel("cunn_SoftMaxBackward"), is_training_kernel("layer_norm::ln_bwd_kernel<float>")
    (True, True)
    >>> is_training_kernel("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc")
    False
    """
    return is_optimizer_kernel(name) or _BACKWARD.search(name) is not None
