"""Names that do not depend on the profiler: of collectives, of their kernels, of kernels that only training runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gpudiag.model.event import EventTable

#: Operation of a communication kernel whose name does not state one.
UNKNOWN = "unknown"

#: NCCL's and RCCL's kernels: `ncclDevKernel_AllReduce_Sum_f32_RING_LL(…)`; before 2.18 `ncclKernel_AllReduce_RING_LL…`;
#: for symmetric memory `ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_…`; RCCL also `ncclDevKernel_Generic_4(…)`.
_LIBRARY_KERNEL = re.compile(r"(?:nccl|rccl)(?:Sym[a-z]?)?(?:Dev)?Kernel(?:Debug)?_([A-Za-z0-9]+)")

#: DeepEP's communication of tokens between experts, plain or mangled: `deep_ep::internode::dispatch<…>`,
#: `_ZN7deep_ep12internode_ll7combineI…`, `dpsk::ep::internode::cached_notify<…>`. Kernels that only count tokens on
#: their device (`get_dispatch_layout`) are compute.
_EXPERTS = (
    r"(?:deep_ep|dpsk::ep)(?:::|\d+)(?:\w+::)?(?:intranode|internode|elastic|hybrid|low_latency)(?:_ll)?(?:::|\d+)"
    r"(?:\w+_)??"
)
#: Serving libraries whose kernels name the collective.
_SERVING = r"(?:aiter|vllm|sglang|sgl_hip|trtllm|tensorrt_llm|flashinfer)"
#: Kernels that move data between devices without NCCL: PyTorch's symmetric memory, vLLM's, SGLang's, aiter's and
#: TensorRT-LLM's custom all-reduce, NVSHMEM, MSCCL, oneCCL.
_OTHER_KERNELS = (
    (re.compile(_EXPERTS + r"(?:dispatch|combine|cached_notify|notify)"), "all_to_all"),
    (re.compile(_EXPERTS + "barrier"), "barrier"),
    (re.compile(r"(?:one|two)_shot_all_?reduce|multimem_(?:one_shot_)?all_?reduce"), "all_reduce"),
    (re.compile(r"all_?reduce_(?:one|two)_?shot|(?:one|two)ShotAllReduce"), "all_reduce"),
    (re.compile(r"cross_?device_?reduce(?:_[12]stage|_split|_naive|kernel)?"), "all_reduce"),
    # aiter, quick reduce, TensorRT-LLM and FlashInfer, fused with a normalization.
    (
        re.compile(r"allreduce_(?:fusion|prototype|kernel|twoshot|oneshot|mnnvl|lamport)|all_?reduce_?(?:rms|norm)"),
        "all_reduce",
    ),
    (re.compile(_SERVING + r"\w*?(?:::|\d+).*?all_?reduce", re.IGNORECASE), "all_reduce"),
    (re.compile(r"multimem_all_gather|" + _SERVING + r"\w*?(?:::|\d+).*?allgather"), "all_gather"),
    (
        re.compile(r"multimem_(?:one_shot_)?reduce_scatter|" + _SERVING + r"\w*?(?:::|\d+).*?reduce_?scatter"),
        "reduce_scatter",
    ),
    (
        re.compile(r"nvshmem\w*all_?to_?all|all_to_all_vdev|moeAllToAllKernel|moeA2A(?:Dispatch|Combine)Kernel"),
        "all_to_all",
    ),
    (re.compile(r"nvshmem\w*(?:all_?gather|fcollect)"), "all_gather"),
    (re.compile(r"nvshmem\w*reduce_?scatter"), "reduce_scatter"),
    (re.compile(r"nvshmem\w*broadcast"), "broadcast"),
    (re.compile(r"nvshmem\w*(?:barrier|sync)"), "barrier"),
    (re.compile(r"nvshmem\w*reduce"), "all_reduce"),
    (re.compile(r"nvshmem\w*(?:put|get|signal|wait)"), UNKNOWN),
    (re.compile(r"mscclKernel|rccl_main_kernel|oneccl_"), UNKNOWN),
)

#: Every name above contains one of these; searching for them first is cheap.
_SIGNS = (
    *("nccl", "rccl", "shot", "Shot", "multimem", "cross_device", "crossDevice", "nvshmem", "vdev", "mscclK", "oneccl"),
    *("deep_ep", "dpsk::ep", "llreduce", "ll_reduce", "llReduce", "allgather", "reduce_scatter", "moeA"),
)

#: Operations by their names in lower case without underscores.
_OPERATIONS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgatherv": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterv": "reduce_scatter",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "send": "send",
    "recv": "recv",
    "recvanysource": "recv",
    "sendrecv": "send_recv",
    "barrier": "barrier",
    "allreducebarrier": "barrier",
    "gather": "gather",
    "scatter": "scatter",
    "generic": UNKNOWN,
}
_DECORATION = re.compile(r"_(?:base|coalesced|tensor|into|single|oop|sparse)(?=_|$)|_$")

#: Fused optimizers and gradients of weights, which no forward pass computes.
_OPTIMIZER = re.compile(
    r"(?:multi_tensor|fused|foreach)\w*.*(?:adam|sgd|lamb(?!da)|adagrad|rmsprop|adafactor|\blion|muon)"
    r"|(?:adam|sgd|lamb(?!da)|adagrad)_?\w*(?:kernel|functor)|wgrad|bprop|Resource(?:Sparse)?Apply",
    re.IGNORECASE,
)
#: Backward kernels. The forward pass of a transposed convolution runs the kernels of a gradient of data, so these prove
#: nothing if the recorded operators show no backward pass.
_BACKWARD = re.compile(r"dgrad|[Bb]ackward|(?<![a-z])bwd|Bwd")


def events_named(table: EventTable, matches: Callable[[str], object]) -> NDArray[np.bool_]:
    """Return bool[n]: the events whose name satisfies a predicate."""
    return np.array([bool(matches(name)) for name in table.names], np.bool_)[table.name]


@cache
def kernel_operation(kernel: str) -> str | None:
    """Return the collective operation of a kernel, None if it does not communicate.

    `unknown` if it communicates but its name does not state the operation (RCCL's `ncclDevKernel_Generic`).
    """
    if not any(sign in kernel for sign in _SIGNS):
        return None
    if match := _LIBRARY_KERNEL.search(kernel):
        return _OPERATIONS.get(match[1].lower(), UNKNOWN)
    for pattern, operation in _OTHER_KERNELS:
        if pattern.search(kernel):
            return operation
    return None


def is_communication_kernel(kernel: str) -> bool:
    """Return whether a kernel of this name moves data between devices."""
    return kernel_operation(kernel) is not None


def normal_operation(word: str) -> str | None:
    """Return the normal name of an operation; None if the word names no known one.

    `allreduce` → `all_reduce`, `_allgather_base` → `all_gather`, `nccl:send 0->1` → `send`.
    """
    plain = word.rpartition(":")[2].strip().split(" ")[0].lower()
    plain = _DECORATION.sub("", plain).replace("_", "")
    return _OPERATIONS.get(plain)


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
    """Return whether a kernel belongs to a backward pass or an optimizer's update.

    >>> is_training_kernel("cunn_SoftMaxBackward"), is_training_kernel("layer_norm::ln_bwd_kernel<float>")
    (True, True)
    >>> is_training_kernel("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc")
    False
    """
    return is_optimizer_kernel(name) or _BACKWARD.search(name) is not None
