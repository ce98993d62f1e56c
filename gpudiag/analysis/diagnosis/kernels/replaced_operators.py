"""Find the host time of operators that one fused operator would replace.

A host that sets the pace gains from fewer operators, and not from shorter kernels. All times come from the recorded
operators:

    training thread   ├ matmul ┤ ├ mul ┤ ├ softmax ┤ ├ to ┤ ├ matmul ┤      eager attention: from product to product
                      ├─ fused ┤                                            fused attention: as long as one product

In the backward pass the operators are autograd's nodes, which PyTorch records around the operators that they call. The
operator of a kernel is the largest operator around its launch that launches no kernel besides the replaced kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.compute.work import NO_CLASS
from gpudiag.analysis.diagnosis.kernels.graph_kernels import GraphKernels
from gpudiag.analysis.diagnosis.simulation.graph import NONE, Index, Times
from gpudiag.analysis.diagnosis.simulation.host_time import lengths_in_turn
from gpudiag.intervals import EMPTY, Intervals, median, outermost, subtract, union

#: Index of the trace → sorted, disjoint times on the common clock.
HostTimes = dict[int, Intervals]


def host_left(kernels: GraphKernels, removed: HostTimes) -> Times:
    """Return float64[n]: share of the work before each host node, except in slow calls, that remains without `removed`.

    Slow calls are left out, because they are no operators of these kernels.
    """
    host, chains = kernels.what_if.graph.host, kernels.what_if.graph.chains
    without = np.zeros(len(host.time))
    for first, after in chains:
        spans = removed.get(int(host.process[first]), EMPTY) if first < after else EMPTY
        if len(spans):
            until = host.time[first:after].astype(np.int64)
            without[first:after] = lengths_in_turn(spans, np.concatenate([until[:1], until[:-1]]), until)
    return 1 - np.fmin(without / np.maximum(host.busy - host.slow, 1.0), 1.0)


def replaced_by_attention(kernels: GraphKernels, products: Index) -> tuple[HostTimes, HostTimes, HostTimes]:
    """Return the host times that fused attention saves, by the expected, the low and the high estimate.

    Fused attention replaces everything from the operator of the first product to the operator of the second product.
    Fused attention is expected to take as long as the shorter of the two operators. By the low estimate of the savings,
    it takes as long as both operators; by the high estimate, as long as the shorter product's innermost operator. If
    one operator launches both products, the operators nested in it count.

    Args:
        kernels: the m ops of a graph.
        products: int64[k, 2], the products before and after the scores.
    """
    if not len(products):
        return {}, {}, {}
    chosen = np.zeros(len(kernels.stream), np.bool_)
    chosen[products] = True
    ranges = _operator_ranges(kernels, chosen, without=kernels.of_class("softmax"))
    whole = _times_between(kernels, ranges, products)
    length = ranges.end - ranges.begin
    before, after = products.T
    kept = np.zeros(len(chosen), np.bool_)
    kept[np.where(length[before] <= length[after], before, after)] = True
    return (
        _less(whole, _times_of(kernels, ranges, kept)),
        _less(whole, _times_of(kernels, ranges, chosen)),
        _less(whole, _times_of(kernels, _innermost(kernels), kept)),
    )


def replaced_by_compiler(
    kernels: GraphKernels, fused: NDArray[np.bool_], member: NDArray[np.bool_], chain: Index, attention: HostTimes
) -> tuple[HostTimes, HostTimes, HostTimes]:
    """Return the host times that compiled chains save, by the expected, the low and the high estimate.

    The operators of fused kernels are saved, each with the usual time until the next operator. Bucket copies remain.
    In a chain that reduces across rows, one fused kernel remains, because it uses the result of the reduction. By the
    low estimate, one more kernel of each chain remains, and the time between operators is not saved. By the high
    estimate, each remaining kernel keeps only its innermost operator, because compiled code calls that operator without
    modules and autograd.

    Args:
        kernels: the m ops of a graph.
        fused: bool[m], the kernels that a compiler fuses into other kernels.
        member: bool[m], all kernels of chains.
        chain: int64[m], number of the chain, ascending.
        attention: host times that count as savings of fused attention.
    """
    crossing = np.zeros(int(chain[-1]) + 1, np.bool_)
    crossing[chain[member & kernels.across_rows]] = True
    copies = kernels.what_if.model.bucket_copy
    fused = fused & ~copies
    removed = fused & ~_longest_of_each(kernels, fused & crossing[chain], chain)
    ranges = _operator_ranges(kernels, removed)
    expected = _times_of(kernels, _until_next_operator(kernels, ranges), removed)
    low = removed & ~_longest_of_each(kernels, removed, chain)
    # The kernels that remain. By the high estimate, they keep only their innermost operators.
    others = ~kernels.in_update & ~kernels.fused & ~removed & ~copies & (kernels.kernel_class != NO_CLASS)
    around = _operator_ranges(kernels, others, without=kernels.in_update)
    outside = _less(_times_of(kernels, around, others), _times_of(kernels, _innermost(kernels), others))
    return (
        _less(expected, attention),
        _less(_times_of(kernels, ranges, low), attention),
        _less(_both(expected, outside), attention),
    )


def _longest_of_each(kernels: GraphKernels, chosen: NDArray[np.bool_], chain: Index) -> NDArray[np.bool_]:
    """Return bool[m]: the longest chosen op of each chain."""
    ops = np.flatnonzero(chosen)
    ops = ops[np.lexsort((-kernels.duration[ops], chain[ops]))]
    longest = np.zeros(len(chosen), np.bool_)
    longest[ops[np.diff(chain[ops], prepend=NONE) != 0]] = True
    return longest


@dataclass(frozen=True, eq=False)
class _OperatorRanges:
    """Ranges of operators on host threads, as columns of the m ops of a graph; `NONE` for ops without a range.

    Attributes:
        begin, end: int64[m], ns on the common clock.
        thread: int64[m], index of the launching thread in `GraphKernels.threads`.
    """

    begin: Index
    end: Index
    thread: Index

    @property
    def known(self) -> NDArray[np.bool_]:
        """Return bool[m]: whether each op has a range."""
        known: NDArray[np.bool_] = self.begin != NONE
        return known


def _operator_ranges(
    kernels: GraphKernels, chosen: NDArray[np.bool_], without: NDArray[np.bool_] | None = None
) -> _OperatorRanges:
    """Return for each chosen op the largest operator around its launch that launches no op of `without`.

    Args:
        kernels: the m ops of a graph.
        chosen: bool[m], the ops.
        without: bool[m], ops that the operator must not launch; by default all that are not chosen.
    """
    without = ~chosen if without is None else without
    ranges = _OperatorRanges(*(np.full(len(chosen), NONE, np.int64) for _ in range(3)))
    for index, thread in enumerate(kernels.threads):
        avoided = thread.called[without[thread.ops]]
        start, end = thread.operators.start, thread.operators.end
        if len(avoided):  # operators that launch none of the avoided ops between their begin and end
            avoided = np.sort(avoided, kind="stable")
            allowed = np.searchsorted(avoided, start) == np.searchsorted(avoided, end)
            start, end = start[allowed], end[allowed]
        wanted = np.flatnonzero(chosen[thread.ops])
        if not len(start) or not len(wanted):
            continue
        largest = outermost(start, end)
        start, end = start[largest], end[largest]
        slot = np.searchsorted(start, thread.called[wanted], side="right") - 1
        inside = (slot >= 0) & (end[slot] > thread.called[wanted])
        ops, slot = thread.ops[wanted[inside]], slot[inside]
        ranges.begin[ops], ranges.end[ops], ranges.thread[ops] = start[slot], end[slot], index
    return ranges


def _until_next_operator(kernels: GraphKernels, ranges: _OperatorRanges) -> _OperatorRanges:
    """Extend the ranges until the thread's next operator begins, by at most the usual time between operators."""
    until = ranges.end.copy()
    for index, thread in enumerate(kernels.threads):
        ops = np.flatnonzero(ranges.thread == index)
        if len(ops):
            start, end = thread.operators.start, thread.operators.end
            largest = outermost(start, end)
            usual = int(median(np.maximum(start[largest][1:] - end[largest][:-1], 0)))
            begin = np.append(start, np.iinfo(np.int64).max)[np.searchsorted(start, ranges.end[ops])]
            until[ops] = np.minimum(begin, ranges.end[ops] + usual)
    return replace(ranges, end=until)


def _innermost(kernels: GraphKernels) -> _OperatorRanges:
    """Return the innermost operator around the launch of each op."""
    ranges = _OperatorRanges(*(np.full(len(kernels.stream), NONE, np.int64) for _ in range(3)))
    for index, thread in enumerate(kernels.threads):
        ranges.begin[thread.ops], ranges.end[thread.ops], ranges.thread[thread.ops] = thread.called, thread.ended, index
    return ranges


def _times_of(kernels: GraphKernels, ranges: _OperatorRanges, chosen: NDArray[np.bool_]) -> HostTimes:
    """Return the ranges of the chosen ops, by trace."""
    times: HostTimes = {}
    for thread in kernels.threads:
        ops = thread.ops[chosen[thread.ops]]
        ops = ops[ranges.begin[ops] != NONE]
        if len(ops):
            spans = Intervals(ranges.begin[ops], ranges.end[ops])
            times[thread.trace] = union(times.get(thread.trace, EMPTY), spans)
    return times


def _times_between(kernels: GraphKernels, ranges: _OperatorRanges, ends: Index) -> HostTimes:
    """Return the times from the range of one op to the range of another op of the same thread and step, by trace.

    `ends` is int64[k, 2], the two ops.
    """
    first, last = ends.T
    step = kernels.what_if.graph.device.step
    joined = ranges.known[first] & ranges.known[last] & (ranges.thread[first] == ranges.thread[last])
    joined &= (step[first] == step[last]) & (ranges.begin[first] <= ranges.begin[last])
    first, last = first[joined], last[joined]
    begins = np.zeros(len(step), np.bool_)
    begins[first] = True
    until = ranges.end.copy()
    until[first] = np.maximum(ranges.end[first], ranges.end[last])
    return _times_of(kernels, replace(ranges, end=until), begins)


def _both(times: HostTimes, others: HostTimes) -> HostTimes:
    return {trace: union(times.get(trace, EMPTY), others.get(trace, EMPTY)) for trace in times.keys() | others.keys()}


def _less(times: HostTimes, kept: HostTimes) -> HostTimes:
    return {trace: subtract(spans, kept.get(trace, EMPTY)) for trace, spans in times.items()}
