"""Advise by the way in which the job communicates: advice for DDP helps nobody who runs FSDP."""

from __future__ import annotations

from collections import Counter

import numpy as np

from gpudiag.analysis.diagnosis.calibration import MOST, SAME_AMOUNT, TINY_TRANSFER_BYTES
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.rules.advice import Advice, jax, others, pytorch, tensorflow
from gpudiag.analysis.diagnosis.rules.unused_nvlink import nvlink_gb_per_s
from gpudiag.intervals import Intervals, distinct, union, within
from gpudiag.model.event import EventKind, Role, any_of
from gpudiag.model.timeline import UNKNOWN

#: Who shards parameters gathers them and scatters gradients.
_SHARDED = frozenset({"all_gather", "reduce_scatter"})
#: One rank sends to all others, or takes from them.
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})

LINKS = "Check the links: `gpudiag topology` (peer access, NVLink) and `gpudiag bandwidth`."
_NOT_PYTORCH: Advice = (
    tensorflow("Communicate less often: accumulate the gradients of several batches before each exchange."),
    jax("Overlap more: XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true; larger batches per device."),
    others("Exchange fewer bytes, less often: a lower precision, the gradients of several batches at once."),
    tensorflow(
        "Overlap more: larger batches per device; compare `--strategy nccl`, `multi-worker` and `hierarchical-copy`."
    ),
)
_DDP: Advice = (
    pytorch(
        "Compress gradients to bf16 (DDP's bf16_compress_hook), or accumulate them over several batches (no_sync())."
    ),
    pytorch("Overlap more: larger batches per device; smaller DDP buckets (bucket_cap_mb), so that the last is short."),
)
#: Where it is not the transfers that cost, but the CPU's calls for them.
_DDP_CALLS: Advice = (
    pytorch(
        "It is the CPU's calls that cost. Spare them: DistributedDataParallel(gradient_as_bucket_view=True) saves a "
        "copy per parameter, a larger bucket_cap_mb whole buckets, static_graph=True bookkeeping in each step."
    ),
    pytorch("Exchange the gradients of several batches at once: accumulate them (no_sync())."),
)
_FSDP: Advice = (
    pytorch(
        "Exchange fewer bytes: FSDP's mixed precision (param_dtype and reduce_dtype bf16); gathered parameters kept "
        "until backward where memory allows (reshard_after_forward=False, SHARD_GRAD_OP); no sharding of a model that "
        "fits (DDP)."
    ),
    pytorch(
        "Overlap more: larger batches per device; each block a unit of its own (fully_shard, auto_wrap_policy), and "
        "the next gathered early (set_modules_to_forward_prefetch, forward_prefetch=True)."
    ),
)
_ROOT: Advice = (
    pytorch(
        "Exchange among all ranks at once and not through one: all-reduce, as DistributedDataParallel does with one "
        "process per device."
    ),
    pytorch("Send fewer bytes: bf16, fewer tensors per step, what changes every N steps only every N steps."),
)
_OWN_LOOP: Advice = (
    pytorch("Exchange less: each tensor once per step, in bf16, and only what must be the same on all ranks."),
    pytorch(
        "Overlap it: gradients while backward still computes, in few large messages (DistributedDataParallel does "
        "both); else all_reduce(…, async_op=True), and wait() right before the result is used."
    ),
)


#: Where nothing recorded says how the job communicates.
_UNKNOWN: Advice = (
    pytorch(
        "Communicate fewer bytes, less often: bf16, the gradients of several batches at once. With "
        "DistributedDataParallel these are bf16_compress_hook and no_sync()."
    ),
    pytorch("Overlap more: larger batches per device, and each message as soon as its gradients are there."),
)
#: Where transfers take their latency.
_TINY = (
    "The transfers are tiny (mostly {bytes} bytes): they cost their latency, and compression saves nothing. Put "
    "several values into one collective, or communicate them every N steps."
)


def communication_advice(case: Case, *, by_calls: bool = False) -> Advice:
    """Return advice for DDP, sharded (FSDP, ZeRO), rooted, or user-defined communication, as the job has it.

    Args:
        case: the job.
        by_calls: it is mostly the CPU's calls that the exchange costs.
    """
    tiny = _tiny_bytes(case)
    if tiny is not None and not by_calls:
        return (_TINY.format(bytes=tiny),)
    own = _of_pytorch(case)
    return (*_NOT_PYTORCH, *(_DDP_CALLS if by_calls and own is _DDP else own))


def _transferring_ns(case: Case) -> Counter[tuple[str, int | None]]:
    """Return how long the collectives of each operation and size transfer, in ns over all devices."""
    time: Counter[tuple[str, int | None]] = Counter()
    for track in case.tracks:
        table = track.collectives
        # Of what a root sends, and of ranks that left no trace, it is not known when the last one came.
        begin = np.where(table.last_arrival != UNKNOWN, np.maximum(table.last_arrival, table.start), table.start)
        for index, (operation, _, _, size) in enumerate(table.kinds):
            time[operation, size] += int((table.end - begin)[table.kind == index].sum())
    return time


def _tiny_bytes(case: Case) -> int | None:
    """Return the commonest size in bytes if most of the time is in transfers that cost their latency, else None."""
    time = _transferring_ns(case)
    tiny: Counter[int] = Counter()
    for (_, size), ns in time.items():
        if size is not None and size < TINY_TRANSFER_BYTES:
            tiny[size] += ns
    return tiny.most_common(1)[0][0] if tiny.total() > MOST * time.total() else None


def _of_pytorch(case: Case) -> Advice:
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
    return _OWN_LOOP if not packed and alone > inside else _DDP


def _enqueued(case: Case) -> tuple[int, int]:
    """Return how many collectives the loop enqueues by itself, inside no other operator, and how many it does not."""
    alone = inside = 0
    for track in case.tracks:
        events = case.timeline.traces[track.trace].events
        operators = events.rows_of(EventKind.OPERATOR)
        communication = any_of(events.role[operators], Role.ENQUEUE, Role.COMMUNICATION)
        for thread in distinct(events.thread[operators[communication]]):
            calls, others = (
                operators[of & (events.thread[operators] == thread)] for of in (communication, ~communication)
            )
            calls = calls[np.argsort(events.start_ns[calls], kind="stable")]
            # A collective's call has calls of its own; each is counted once.
            until = np.maximum.accumulate(np.append(0, events.end_ns[calls]))[:-1]
            calls = calls[until <= events.start_ns[calls]]
            around = union(Intervals(events.start_ns[others], events.end_ns[others]))
            held = int(within(around, events.start_ns[calls]).sum())
            alone, inside = alone + len(calls) - held, inside + held
    return alone, inside


def links_in_doubt(case: Case, busbw_gb_per_s: float | None, probed_gb_per_s: float | None) -> bool:
    """Return whether links may be slower than they should be: not if collectives reach what they carry.

    That is what the probes reached at the same size, or else most of the NVLink that the boards have.
    """
    if case.tracks[0].is_cpu:
        return False
    if busbw_gb_per_s is None:
        return True
    if probed_gb_per_s is not None:
        return busbw_gb_per_s < (1 - SAME_AMOUNT) * probed_gb_per_s
    rates = [nvlink_gb_per_s(track.device_name) for track in case.tracks]
    return any(rate is None or busbw_gb_per_s < MOST * rate for rate in rates)
