"""Interpret names of collectives, kernels, and host calls of CUDA and HIP, which are the same in all profilers."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import among, distinct
from gpudiag.model.event import DEVICE_WORK, HOST, NO_CORRELATION, EventKind, EventTable, Role, any_of

#: Operation of a communication kernel whose name does not state one.
UNKNOWN = "unknown"

#: NCCL's and RCCL's kernels: `ncclDevKernel_AllReduce_Sum_f32_RING_LL(…)`, before 2.18 `ncclKernel_AllReduce_RING_LL…`,
#: with symmetric memory `ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_…`, in RCCL also `ncclDevKernel_Generic_4(…)`.
_LIBRARY_KERNEL = re.compile(r"(?:nccl|rccl)(?:Sym[a-z]?)?(?:Dev)?Kernel(?:Debug)?_([A-Za-z0-9]+)")

#: DeepEP's communication of tokens between experts, plain or mangled: `deep_ep::internode::dispatch<…>`,
#: `_ZN7deep_ep12internode_ll7combineI…`, `dpsk::ep::internode::cached_notify<…>`. Kernels that only count tokens on
#: their device (`get_dispatch_layout`) are compute.
_EXPERTS = (
    r"(?:deep_ep|dpsk::ep)(?:::|\d+)(?:\w+::)?(?:intranode|internode|elastic|hybrid|low_latency)(?:_ll)?(?:::|\d+)"
    r"(?:\w+_)??"
)
#: Serving libraries whose kernels' names state the collective.
_SERVING = r"(?:aiter|vllm|sglang|sgl_hip|trtllm|tensorrt_llm|flashinfer)"
#: Kernels that move data between devices without NCCL: PyTorch's symmetric memory, vLLM's, SGLang's, aiter's and
#: TensorRT-LLM's custom all-reduce, NVSHMEM, MSCCL, oneCCL.
_OTHER_KERNELS = (
    (re.compile(_EXPERTS + r"(?:dispatch|combine|cached_notify|notify)"), "all_to_all"),
    (re.compile(_EXPERTS + "barrier"), "barrier"),
    (re.compile(r"(?:one|two)_shot_all_?reduce|multimem_(?:one_shot_)?all_?reduce"), "all_reduce"),
    (re.compile(r"all_?reduce_(?:one|two)_?shot|(?:one|two)ShotAllReduce"), "all_reduce"),
    (re.compile(r"cross_?device_?reduce(?:_[12]stage|_split|_naive|kernel)?"), "all_reduce"),
    # Kernels of aiter, quick reduce, TensorRT-LLM and FlashInfer, some fused with a normalization.
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

#: Each name that matches a pattern above contains one of these strings. Searching for them first is cheap.
_SIGNS = (
    *("nccl", "rccl", "shot", "Shot", "multimem", "cross_device", "crossDevice", "nvshmem", "vdev", "mscclK", "oneccl"),
    *("deep_ep", "dpsk::ep", "llreduce", "ll_reduce", "llReduce", "allgather", "reduce_scatter", "moeA"),
)

#: Names of operations in lower case without underscores → operation.
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
#: Suffixes of a word for an operation. They do not change the operation.
_DECORATION = re.compile(r"_(?:base|coalesced|tensor|into|single|oop|sparse)(?=_|$)|_$")

#: Kernels of optimizers and of weight gradients, which no forward pass runs.
_OPTIMIZER = re.compile(
    r"(?:multi_tensor|fused|foreach)\w*.*(?:adam|sgd|lamb(?!da)|adagrad|rmsprop|adafactor|\blion|muon)"
    r"|(?:adam|sgd|lamb(?!da)|adagrad)_?\w*(?:kernel|functor)|wgrad|bprop|Resource(?:Sparse)?Apply",
    re.IGNORECASE,
)
#: Names of backward kernels. Such kernels do not prove training if operators were recorded, because the forward pass of
#: a transposed convolution runs kernels of data gradients too.
_BACKWARD = re.compile(r"dgrad|[Bb]ackward|(?<![a-z])bwd|Bwd")
Rows = NDArray[np.intp]

#: Suffixes for versions and per-thread streams: `cudaMemcpy_v3020_ptds`, `hipMemcpy_spt`.
_VERSION = r"(?:_v\d+|_ptds|_ptsz|_spt)*$"
_MEMSET = re.compile(r"(?:cuda|hip|cu)Memset")
_GRAPH_LAUNCH = re.compile(r"(?:cuda|hip|cu)GraphLaunch")
_BEGIN_CAPTURE = re.compile(r"(?:cuda|hip|cu)StreamBeginCapture")
_END_CAPTURE = re.compile(r"(?:cuda|hip|cu)StreamEndCapture")
#: The methods of `torch.cuda.CUDAGraph` that begin and end a capture, in recorded Python stacks.
_BEGIN_FUNCTION = re.compile(r"(?:.*\.py\(\d+\): |<built-in method )capture_begin\b")
_END_FUNCTION = re.compile(r"(?:.*\.py\(\d+\): |<built-in method )capture_end\b")

_ROLES = (
    (
        Role.SYNCHRONIZATION,
        re.compile(
            r"(?:cuda|hip)(?:Device|Stream|Event)Synchronize"
            r"|cu(?:Ctx|Stream|Event)Synchronize"
            r"|(?:cuda|hip)(?:Memcpy|Memcpy2D|Memcpy3D|MemcpyToSymbol|MemcpyFromSymbol)"
            + _VERSION
            + r"|hipMemcpy(?:WithStream|HtoD|DtoH|DtoD)"
            + _VERSION
            + r"|cuMemcpy(?:HtoD|DtoH|DtoD)?"
            + _VERSION
        ),
    ),
    (Role.STREAM_WAIT, re.compile(r"(?:cuda|hip|cu)StreamWaitEvent")),
    (Role.COPY, re.compile(r"(?:cuda|hip)Memcpy\w*Async|cuMemcpy\w*Async")),
    (
        Role.RELEASE,
        re.compile(
            r"(?:cuda|hip)(?:Free|FreeHost|HostFree|HostUnregister)"
            + _VERSION
            + r"|cuMem(?:Free|FreeHost|Unmap)"
            + _VERSION
        ),
    ),
    (
        Role.ALLOCATION,
        re.compile(
            r"(?:cuda|hip)(?:Malloc(?!Async|FromPool)|ExtMalloc|HostAlloc|HostMalloc|HostRegister)"
            r"|cuMem(?:Alloc(?!Async|FromPool)|Create|Map|SetAccess|HostAlloc)"
        ),
    ),
    (Role.LAUNCH, re.compile(r"(?:cuda|hip|cu)\w*(?:Launch|Memset)")),
)


def events_named(table: EventTable, matches: Callable[[str], object]) -> NDArray[np.bool_]:
    """Return bool[n]: whether each event's name satisfies the predicate `matches`."""
    return np.array([bool(matches(name)) for name in table.names], np.bool_)[table.name]


@cache
def kernel_operation(kernel: str) -> str | None:
    """Return the collective operation of a kernel; None if the kernel does not communicate.

    The operation is `unknown` if the name of a communication kernel does not state it (`ncclDevKernel_Generic`).
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
    """Return the operation that a profiler's word names; None if it is unknown.

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


def is_memset(name: str) -> bool:
    """Return whether a call is a memset."""
    return _MEMSET.match(name) is not None


def is_graph_launch(name: str) -> bool:
    """Return whether a call launches a CUDA or HIP graph.

    >>> is_graph_launch("hipGraphLaunch"), is_graph_launch("cudaGraphInstantiate")
    (True, False)
    """
    return _GRAPH_LAUNCH.match(name) is not None


@cache
def role_of_call(name: str) -> Role:
    """Return the role of a host call of CUDA or HIP.

    >>> role_of_call("cudaMemcpyAsync"), role_of_call("cudaMemcpy_v3020")
    (<Role.COPY: 3>, <Role.SYNCHRONIZATION: 5>)
    >>> role_of_call("hipMemcpyWithStream"), role_of_call("hipHostFree")
    (<Role.SYNCHRONIZATION: 5>, <Role.RELEASE: 16>)
    >>> role_of_call("cuLaunchKernelEx"), role_of_call("cudaEventQuery")
    (<Role.LAUNCH: 4>, <Role.OTHER: 0>)
    """
    return next((role for role, pattern in _ROLES if pattern.match(name)), Role.OTHER)


def roles_without_idle_launches(table: EventTable) -> NDArray[np.uint8]:
    """Return the role column, uint8[n], with `OTHER` for memsets and captured calls that have no device op.

    Memsets and captured launches and copies may have no device op although the profiler lost nothing:

        cudaMemsetAsync                          a memset of zero bytes, or one that runs on the device without an op
        cudaStreamBeginCapture ┤ launch launch ├ cudaStreamEndCapture    work captured into a graph, which runs later
    """
    calls = np.flatnonzero((table.kind == EventKind.RUNTIME) & any_of(table.role, Role.LAUNCH, Role.COPY))
    if not len(calls):
        return table.role
    calls = calls[~_has_work(table, calls)]
    idle = events_named(table, _MEMSET.match)[calls]
    for thread, (begin, end) in _captures(table).items():
        slot = np.searchsorted(begin, table.start_ns[calls], side="right") - 1
        idle |= (table.thread[calls] == thread) & (slot >= 0) & (table.start_ns[calls] < end[np.maximum(slot, 0)])
    if not idle.any():
        return table.role
    role = table.role.copy()
    role[calls[idle]] = Role.OTHER
    return role


def count_unrecorded_graphs(table: EventTable) -> int:
    """Return the number of graph launches without recorded device work, except at the end of the recording.

    The kernels of a graph usually have the correlation of the graph's launch. Some profilers give them a correlation
    that no recorded call has. Such kernels between two graph launches belong to the first of the two graphs.
    """
    launches = np.flatnonzero((table.kind == EventKind.RUNTIME) & events_named(table, is_graph_launch))
    if not len(launches):
        return 0
    work = table.rows_of(*DEVICE_WORK)
    calls = table.rows_of(EventKind.RUNTIME)
    unlaunched = np.sort(table.start_ns[work[~among(table.correlation[work], table.correlation[calls])]])
    start = table.start_ns[launches]
    until = np.append(start[1:], np.iinfo(np.int64).max)
    has_unlaunched = np.searchsorted(unlaunched, until) > np.searchsorted(unlaunched, start)
    unrecorded = ~_has_work(table, launches) & ~has_unlaunched
    if len(work):  # the last launches may have run after the profiler stopped
        unrecorded &= start < table.start_ns[work[-1]]
    return int(np.count_nonzero(unrecorded))


def _has_work(table: EventTable, calls: Rows) -> NDArray[np.bool_]:
    """Return bool[n]: whether a device op has the correlation of each call."""
    work = table.rows_of(*DEVICE_WORK)
    correlation = table.correlation[calls]
    has_work: NDArray[np.bool_] = among(correlation, table.correlation[work]) & (correlation != NO_CORRELATION)
    return has_work


def _captures(table: EventTable) -> dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return thread → (begins, ends) of its graph captures in ns, int64[k] each.

    A capture that began before the recording has the begin 0. A capture that did not end has the end of the recording.
    """
    runtime = table.kind == EventKind.RUNTIME
    python = table.kind == EventKind.PYTHON
    begins = runtime & events_named(table, _BEGIN_CAPTURE.match) | python & events_named(table, _BEGIN_FUNCTION.match)
    ends = runtime & events_named(table, _END_CAPTURE.match) | python & events_named(table, _END_FUNCTION.match)
    marks = np.flatnonzero((begins | ends) & (table.device == HOST))
    last = int(table.end_ns.max(initial=0)) + 1
    captures = {}
    for thread in distinct(table.thread[marks]).tolist():
        spans: list[list[int]] = []
        is_open = False  # whether the last span in `spans` has no end yet
        first = True  # whether no mark precedes, so that an end is of a capture that began before the recording
        for row in marks[table.thread[marks] == thread].tolist():
            if begins[row] and not is_open:
                spans.append([int(table.start_ns[row]), last])
                is_open = True
            elif ends[row] and is_open:
                spans[-1][1] = int(table.end_ns[row])
                is_open = False
            elif ends[row] and first:
                spans.append([0, int(table.end_ns[row])])
            first = False
        times = np.array(spans, np.int64).reshape(-1, 2)
        captures[thread] = (times[:, 0], times[:, 1])
    return captures
