"""Choose advice by how the job communicates, because advice for DDP does not apply to FSDP."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from gpudiag.analysis.diagnosis.calibration import (
    LARGE_TRANSFER_BYTES,
    MOST,
    OF_NVLINK,
    SAME_AMOUNT,
    TINY_TRANSFER_BYTES,
)
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.rules.rule import Advice, jax, pytorch, tensorflow, unknown
from gpudiag.intervals import Intervals, distinct, median, outermost, union, within
from gpudiag.model.event import EventKind, Role, any_of
from gpudiag.model.timeline import UNKNOWN
from gpudiag.units import bus_factor

#: Part of a board's name → one-way bandwidth of all NVLink lanes of a GPU, in GB/s. NVIDIA's data sheets state twice as
#: much, the sum of both directions. Every board with one of these names has NVLink.
_GB_PER_S = (
    ("B200", 900.0),
    ("H200", 450.0),
    ("H100 80GB HBM3", 450.0),
    ("A100-SXM4", 300.0),
    ("V100-SXM2", 150.0),
    ("V100-SXM3", 150.0),
    ("P100-SXM2", 80.0),
)
#: Parts of the names of boards in PCIe slots, which have NVLink only if a bridge is installed.
_IN_SLOTS = ("NVL", "PCIe")
#: Operations that communicate sharded parameters.
_SHARDED = frozenset({"all_gather", "reduce_scatter"})
#: Operations in which one rank sends to or receives from all others.
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})

LINKS = "Check the links: `gpudiag topology` (peer access, NVLink) and `gpudiag bandwidth`."
_NOT_PYTORCH: Advice = (
    tensorflow("Communicate less often: accumulate the gradients of several batches before each all-reduce."),
    jax(
        "Communicate fewer bytes, less often: bfloat16 gradients, several microbatches (jax.lax.scan) per mean over "
        "devices."
    ),
    unknown("Communicate fewer bytes, less often: a lower precision, the gradients of several batches at once."),
    tensorflow(
        "Overlap more: larger batches per device; compare `--strategy nccl`, `multi-worker` and `hierarchical-copy`."
    ),
)
#: Advice about options of XLA for GPUs.
_XLA_ON_GPUS: Advice = (
    jax(
        "Overlap more: XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true, with "
        "--xla_gpu_enable_pipelined_all_reduce=true (or all_gather, reduce_scatter) if layers are in a jax.lax.scan; "
        "larger batches per device."
    ),
    jax(
        "Send fewer, larger messages: raise --xla_gpu_all_reduce_combine_threshold_bytes (all_gather, reduce_scatter)."
    ),
)
_DDP: Advice = (
    pytorch(
        "Compress gradients to bf16 (DDP's bf16_compress_hook), or accumulate them over several batches (no_sync())."
    ),
    pytorch("Overlap more: larger batches per device; smaller DDP buckets (bucket_cap_mb), so that the last is short."),
)
#: Advice if the CPU's calls for communication cost time, and the transfers do not.
_DDP_CALLS: Advice = (
    pytorch(
        "The CPU's calls cost the time. Make fewer: DistributedDataParallel(gradient_as_bucket_view=True) saves a copy "
        "per parameter, a larger bucket_cap_mb saves buckets, static_graph=True saves bookkeeping in each step."
    ),
    pytorch("Communicate the gradients of several batches at once: accumulate them (no_sync())."),
)
_FSDP: Advice = (
    pytorch(
        "Communicate fewer bytes: use FSDP's mixed precision (param_dtype and reduce_dtype bf16); keep gathered "
        "parameters until backward if memory allows (reshard_after_forward=False, SHARD_GRAD_OP); do not shard a model "
        "that fits (DDP)."
    ),
    pytorch(
        "Overlap more: use larger batches per device; make each block a separate unit (fully_shard, auto_wrap_policy); "
        "gather the next unit early (set_modules_to_forward_prefetch, forward_prefetch=True)."
    ),
)
_ROOT: Advice = (
    pytorch(
        "Communicate among all ranks at once, not through one rank: use all-reduce, as DistributedDataParallel does "
        "with one process per device."
    ),
    pytorch("Send fewer bytes: use bf16 and fewer tensors per step; send rarely changed values only every N steps."),
)
_USER_DEFINED: Advice = (
    pytorch("Communicate less: each tensor once per step, in bf16, and only tensors that must be equal on all ranks."),
    pytorch(
        "Overlap communication: send gradients during backward, in few large messages (DistributedDataParallel does "
        "both); otherwise call all_reduce(…, async_op=True), and wait() right before the result is used."
    ),
)
#: Advice if the recording does not show how the job communicates.
_UNKNOWN: Advice = (
    pytorch(
        "Communicate fewer bytes, less often: bf16, the gradients of several batches at once. With "
        "DistributedDataParallel these are bf16_compress_hook and no_sync()."
    ),
    pytorch("Overlap more: larger batches per device, and send each message as soon as its gradients are ready."),
)
#: Advice if transfers are so small that they take only their latency.
_TINY = (
    "The transfers are tiny (mostly {bytes} bytes) and take only their latency, so that compression saves nothing. Put "
    "several values into one collective, or communicate them every N steps."
)


class LargestCollective(msgspec.Struct, frozen=True, kw_only=True):
    """The kind of collective (operation and size) with the most time on the first device, with its bus bandwidth.

    `ranks` is the number of participants. The bandwidth follows from `median_ns`, the median time of such a collective.
    """

    operation: str
    size_bytes: int
    ranks: int
    median_ns: float
    busbw_gb_per_s: float


def largest_collective(case: Case, *, from_last_arrival: bool) -> LargestCollective | None:
    """Return the kind of collective with the most time on the first device; None without collectives of known size.

    With `from_last_arrival`, time counts from the arrival of the last participant, else from the first device's
    arrival. The collectives of other devices are usually of the same kinds.
    """
    best, most = None, 0.0
    for track in case.tracks[:1]:
        table = track.collectives
        begin = table.last_arrival if from_last_arrival else table.start
        known = begin != UNKNOWN if from_last_arrival else np.ones(len(begin), np.bool_)
        for index, (operation, _, ranks, size) in enumerate(table.kinds):
            time = (table.end - begin)[known & (table.kind == index)]
            count = ranks or case.timeline.world_size
            factor = bus_factor(operation, count)
            if size is None or factor is None or not len(time) or median(time) <= 0 or time.sum() <= most:
                continue
            most = float(time.sum())
            best = LargestCollective(
                operation=operation,
                size_bytes=size,
                ranks=count,
                median_ns=median(time),
                busbw_gb_per_s=size / median(time) * factor,
            )
    return best


def unused_nvlink_gb_per_s(case: Case, size_bytes: int, busbw_gb_per_s: float) -> float | None:
    """Return the one-way NVLink bandwidth, in GB/s, if a collective shows that it does not use NVLink.

    Return None unless the collective is large, all ranks are on one machine with NVLink, and the bus bandwidth is at
    most `OF_NVLINK` of the NVLink bandwidth. Copies through host memory reach no more.
    """
    rates = [nvlink_gb_per_s(track.device_name) for track in case.tracks]
    least = min((rate for rate in rates if rate is not None), default=0.0)
    if None in rates or size_bytes < LARGE_TRANSFER_BYTES or busbw_gb_per_s > OF_NVLINK * least:
        return None
    return least if _on_one_machine(case) and _linked(case) else None


def nvlink_gb_per_s(name: str) -> float | None:
    """Return the one-way NVLink bandwidth of a board of this name, in GB/s; None if unknown."""
    if any(word in name for word in _IN_SLOTS):
        return None
    return next((rate for board, rate in _GB_PER_S if board in name), None)


def _on_one_machine(case: Case) -> bool:
    """Return whether all ranks, two or more with traces, are on one machine; without a record, by device numbers."""
    if len(case.tracks) < 2 or len(case.timeline.ranks_present) < case.timeline.world_size:
        return False
    if case.run is not None and case.run.ranks:
        return len({rank.host for rank in case.run.ranks}) == 1
    return len({track.device for track in case.tracks}) == len(case.tracks)


def _linked(case: Case) -> bool:
    """Return whether the machine has NVLink; True if unknown."""
    return case.facts is None or not case.facts.links or any(link.lanes for link in case.facts.links)


def communication_advice(case: Case, *, by_calls: bool = False) -> Advice:
    """Return advice for the job's communication: DDP, sharded (FSDP, ZeRO), rooted, or user-defined.

    `by_calls` says that most of the cost is the CPU's calls for communication.
    """
    tiny = _tiny_bytes(case)
    if tiny is not None and not by_calls:
        return (_TINY.format(bytes=tiny),)
    advice = _pytorch_advice(case)
    on_gpus = () if case.tracks[0].is_cpu else _XLA_ON_GPUS
    return (*_NOT_PYTORCH, *on_gpus, *(_DDP_CALLS if by_calls and advice is _DDP else advice))


def _transferring_ns(case: Case) -> Counter[tuple[str, int | None]]:
    """Return the transfer time of collectives by operation and size, in ns over all devices."""
    time: Counter[tuple[str, int | None]] = Counter()
    for track in case.tracks:
        table = track.collectives
        # The last arrival is unknown if a participant has no trace, or if a root sends without waiting.
        begin = np.where(table.last_arrival != UNKNOWN, np.maximum(table.last_arrival, table.start), table.start)
        for index, (operation, _, _, size) in enumerate(table.kinds):
            time[operation, size] += int((table.end - begin)[table.kind == index].sum())
    return time


def _tiny_bytes(case: Case) -> int | None:
    """Return the tiny size with the most transfer time, in bytes; None unless tiny transfers take most of the time."""
    time = _transferring_ns(case)
    tiny: Counter[int] = Counter()
    for (_, size), ns in time.items():
        if size is not None and size < TINY_TRANSFER_BYTES:
            tiny[size] += ns
    return tiny.most_common(1)[0][0] if tiny.total() > MOST * time.total() else None


def _pytorch_advice(case: Case) -> Advice:
    """Return the advice for the kind of communication that takes most of the transfer time."""
    time: Counter[str] = Counter()
    for (operation, _), ns in _transferring_ns(case).items():
        time[operation] += ns
    for operations, advice in ((_SHARDED, _FSDP), (_ROOTED, _ROOT)):
        if sum(time[operation] for operation in operations) > MOST * time.total():
            return advice
    alone, inside = _enqueued(case)
    packed = any((trace.events.role == Role.BUCKET_COPY).any() for trace in case.timeline.traces)
    if not packed and not alone and not inside:
        return _UNKNOWN
    # DDP enqueues inside operators of the backward pass. Collectives outside of operators are the training loop's.
    return _USER_DEFINED if not packed and alone > inside else _DDP


def _enqueued(case: Case) -> tuple[int, int]:
    """Return the numbers of collectives that were enqueued (outside of any other operator, inside another operator)."""
    alone = inside = 0
    for track in case.tracks:
        events = case.timeline.traces[track.trace].events
        operators = events.rows_of(EventKind.OPERATOR)
        communication = any_of(events.role[operators], Role.ENQUEUE, Role.COMMUNICATION)
        for thread in distinct(events.thread[operators[communication]]):
            calls, others = (
                operators[chosen & (events.thread[operators] == thread)] for chosen in (communication, ~communication)
            )
            calls = calls[np.argsort(events.start_ns[calls], kind="stable")]
            # Calls nested in another call for communication do not count.
            calls = calls[outermost(events.start_ns[calls], events.end_ns[calls])]
            around = union(Intervals(events.start_ns[others], events.end_ns[others]))
            enclosed = int(within(around, events.start_ns[calls]).sum())
            alone, inside = alone + len(calls) - enclosed, inside + enclosed
    return alone, inside


def links_in_doubt(case: Case, busbw_gb_per_s: float | None, probed_gb_per_s: float | None) -> bool:
    """Return whether links may be slow: the bandwidth of collectives is lower than expected, or is unknown.

    The expected bandwidth is three quarters of the bandwidth in the probes at the same size; without probes, it is half
    of the NVLink bandwidth.
    """
    if case.tracks[0].is_cpu:
        return False
    if busbw_gb_per_s is None:
        return True
    if probed_gb_per_s is not None:
        return busbw_gb_per_s < (1 - SAME_AMOUNT) * probed_gb_per_s
    rates = [nvlink_gb_per_s(track.device_name) for track in case.tracks]
    return any(rate is None or busbw_gb_per_s < MOST * rate for rate in rates)
