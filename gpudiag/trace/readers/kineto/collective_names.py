"""The many names of collectives, of their kernels, and of the data they carry."""

from __future__ import annotations

import re
from functools import cache

#: The operation of a kernel that communicates without saying what.
UNKNOWN = "unknown"

#: Ranges of collectives that the host itself carries out; they span the real work.
HOST_COLLECTIVES = ("gloo:", "mpi:", "ucc:")

#: NCCL's and RCCL's kernels: `ncclDevKernel_AllReduce_Sum_f32_RING_LL(…)`; before 2.18 `ncclKernel_AllReduce_RING_LL…`;
#: for symmetric memory `ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_…`; RCCL also `ncclDevKernel_Generic_4(…)`.
_LIBRARY_KERNEL = re.compile(r"(?:nccl|rccl)(?:Sym[a-z]?)?(?:Dev)?Kernel(?:Debug)?_([A-Za-z0-9]+)")

#: DeepEP's exchange of tokens between experts, plain or mangled: `deep_ep::internode::dispatch<…>`,
#: `_ZN7deep_ep12internode_ll7combineI…`, `dpsk::ep::internode::cached_notify<…>`. What only counts tokens on its own
#: device (`get_dispatch_layout`) is compute.
_EXPERTS = (
    r"(?:deep_ep|dpsk::ep)(?:::|\d+)(?:\w+::)?(?:intranode|internode|elastic|hybrid|low_latency)(?:_ll)?(?:::|\d+)"
    r"(?:\w+_)??"
)
#: Libraries for serving whose kernels name the collective.
_SERVING = r"(?:aiter|vllm|sglang|sgl_hip|trtllm|tensorrt_llm|flashinfer)"
#: Kernels that move data between devices without NCCL: PyTorch's symmetric memory, vLLM's, SGLang's, aiter's and
#: TensorRT-LLM's custom all-reduce, NVSHMEM, MSCCL, oneCCL.
_OTHER_KERNELS = (
    (re.compile(_EXPERTS + r"(?:dispatch|combine|cached_notify|notify)"), "all_to_all"),
    (re.compile(_EXPERTS + "barrier"), "barrier"),
    (re.compile(r"(?:one|two)_shot_all_?reduce|multimem_(?:one_shot_)?all_?reduce"), "all_reduce"),
    (re.compile(r"all_?reduce_(?:one|two)_?shot|(?:one|two)ShotAllReduce"), "all_reduce"),
    (re.compile(r"cross_?device_?reduce(?:_[12]stage|_split|_naive|kernel)?"), "all_reduce"),
    # aiter, quick reduce, TensorRT-LLM and FlashInfer: with the normalization that they fuse it with.
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

#: A name without any of these is none of the above; looking for them first is cheap.
_SIGNS = (
    *("nccl", "rccl", "shot", "Shot", "multimem", "cross_device", "crossDevice", "nvshmem", "vdev", "mscclK", "oneccl"),
    *("deep_ep", "dpsk::ep", "llreduce", "ll_reduce", "llReduce", "allgather", "reduce_scatter", "moeA"),
)

#: Operations by their names in lower case without underlines.
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

_ELEMENT_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "long": 8, "int": 4, "short": 2, "char": 1, "byte": 1,
    "bool": 1, "complexfloat": 8, "complexdouble": 16, "complexhalf": 4, "uint16": 2, "uint32": 4, "uint64": 8,
    "long int": 8, "long long": 8, "unsigned char": 1, "signed char": 1, "short int": 2,
    "c10::half": 2, "c10::bfloat16": 2, "c10::complex<float>": 8, "c10::complex<double>": 16,
}  # fmt: skip


@cache
def kernel_operation(kernel: str) -> str | None:
    """The collective that a kernel belongs to, by its name: None where the kernel does not communicate.

    `unknown` where it communicates but the name does not say what (RCCL's `ncclDevKernel_Generic`).
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
    """Whether a kernel of this name moves data between devices."""
    return kernel_operation(kernel) is not None


def normal_operation(word: str) -> str | None:
    """One word for one operation; None for a word that fits none.

    `allreduce` → `all_reduce`, `_allgather_base` → `all_gather`, `nccl:send 0->1` → `send`.
    """
    plain = word.rpartition(":")[2].strip().split(" ")[0].lower()
    plain = _DECORATION.sub("", plain).replace("_", "")
    return _OPERATIONS.get(plain)


def element_bytes(dtype: str) -> int | None:
    """Bytes of one element, by PyTorch's name of its type; None for a name that is not known."""
    lowered = dtype.strip().lower()
    if lowered.startswith(("float8", "c10::float8")):
        return 1
    return _ELEMENT_BYTES.get(lowered)
