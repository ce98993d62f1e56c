"""Estimate how much shorter kernels become if a cause of slow compute is removed.

Each function returns an expected, a low and a high estimate, because a trace does not show the durations of the kernels
that would replace the recorded kernels. The estimates follow from the device's peaks and from the bytes that kernels
move:

* fp32 on tensor cores: time falls by the ratio of two FLOP rates. Each rate is a peak times the share that kernels
  reach.
* Conversions of layouts move bytes that channels-last tensors need not move. Batch normalization and depthwise
  convolutions on contiguous tensors are slower than the memory allows.
* Eager attention writes and reads the scores of all pairs of tokens in each kernel. Fused attention keeps the scores on
  chip, and computes them once more in the backward pass.
* An unfused update reads and writes each tensor once per operation. A fused update reads and writes each tensor once.
* A chain of elementwise kernels reads and writes its tensors once per kernel. A compiled chain reads and writes them
  once.
* Fused attention and a compiled chain also replace operators, which saves host time (`replaced_operators`).
* In a full launch queue a launch-sized kernel begins 1.2 µs after the previous kernel, in a CUDA graph 0.45 µs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.compute.work import LAUNCH_SIZED_NS, NO_CLASS
from gpudiag.analysis.diagnosis.calibration import GAP_IN_GRAPH_NS, QUEUED_NS
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.kernels.graph_kernels import (
    GraphKernels,
    Shortening,
    launch_share,
    share_at_memory_peak,
)
from gpudiag.analysis.diagnosis.kernels.replaced_operators import (
    HostTimes,
    host_left,
    replaced_by_attention,
    replaced_by_compiler,
)
from gpudiag.analysis.diagnosis.simulation.graph import NONE, Index
from gpudiag.model.compute_rates import peak_tflops

CauseName = Literal[
    "fp32-matmul", "layout-conversion", "eager-attention", "unfused-optimizer", "unfused-elementwise", "small-kernels"
]

#: Share of the fp32 peak that a matrix kernel reaches without tensor cores. Measured: 0.8 to 0.95 in cuBLAS.
_REACHED_FP32 = 0.85
# Each tuple below has the values for the (expected, low, high) estimate of the savings.
#: Share of the tensor cores' peak that kernels reach. Measured (H100, tf32): 0.4 in a GPT-2, 0.6 in a ViT, and 0.16 in
#: products with 64 rows, which are memory-bound.
_REACHED_TENSOR = (0.5, 0.2, 0.8)
#: Share of conversions that remains with channels-last tensors: conversions of the input, and between precisions.
_CONVERSIONS_LEFT = (0.1, 0.4, 0.0)
#: Share of a batch normalization's time that remains with channels-last tensors. Measured (H100): 0.55 in a ResNet-50,
#: 0.9 in a ResNet-101.
_NORMALIZATION_LEFT = (0.65, 1.0, 0.55)
#: Share of the memory's peak that cuDNN's batch normalization in fp32 reaches with channels-last tensors. Physical:
#: cuDNN's kernels read each tensor twice and reach 0.85 of the peak; the bytes count each tensor once.
_CUDNN_NORMALIZATION_REACHED = (0.55, 0.3, 0.75)
#: Share of a depthwise convolution's time that remains with channels-last tensors. Measured (H100): about 0.3 in a
#: ConvNeXt and in a MobileNet.
_DEPTHWISE_LEFT = (0.3, 0.6, 0.15)
#: Shares of the time of score kernels, and of the matrix products beside them, that remain with fused attention.
#: Physical: fused attention computes one of six products again; causal attention skips up to half of the products.
_SCORES_LEFT = (0.0, 0.35, 0.0)
_PRODUCTS_LEFT = (7 / 6, 1.35, 0.8)
#: Share of an update's time that remains if it is fused. Physical: Adam reads and writes 18 tensors unfused, and seven
#: fused. SGD with momentum reads and writes eight tensors unfused, and five fused.
_UPDATE_LEFT = (0.45, 0.65, 0.35)
#: Share of the time of an update's launch-sized kernels that remains: one fused kernel replaces hundreds of kernels.
_SMALL_UPDATE_LEFT = (0.1, 0.3, 0.05)
#: Share of an update's launches and gaps that remains if the update is fused.
_UPDATE_HOST_LEFT = (0.2, 0.4, 0.1)
#: Share of an elementwise kernel's time that remains if it is fused into a longer kernel: reading other operands.
_FUSED_LEFT = (0.35, 0.6, 0.15)
#: Maximum number of kernels between a matrix product and the softmax of attention.
_MOST_BETWEEN = 12


@dataclass(frozen=True, eq=False)
class SlowKernels:
    """Kernels that a change would shorten.

    Attributes:
        name: the cause.
        ops: bool[m], which of the graph's m ops are these kernels.
        estimates: scenarios without the cause, by the expected, the low and the high estimate of the savings.
        evidence: figures for the finding.
    """

    name: CauseName
    ops: NDArray[np.bool_]
    estimates: tuple[Shortening, ...]
    evidence: dict[str, object] = field(default_factory=dict)

    @property
    def expected(self) -> Shortening:
        """Return the expected scenario."""
        return self.estimates[0]


def slow_kernels(case: Case, kernels: GraphKernels) -> list[SlowKernels]:
    """Return the slow kernels of each cause; elementwise chains exclude kernels of attention and of updates."""
    if not len(kernels.stream):
        return []
    scores, products = attention_ops(kernels)
    operators = replaced_by_attention(kernels, products)
    candidates = [
        fp32_products(case, kernels),
        conversions(case, kernels),
        eager_attention(kernels, scores, products, operators),
        unfused_update(kernels),
        elementwise_chains(kernels, scores, operators[0]),
        launch_sized(kernels),
    ]
    return [slow for slow in candidates if slow is not None]


def fp32_products(case: Case, kernels: GraphKernels) -> SlowKernels | None:
    """Return the fp32 products without tensor cores, on devices whose tensor cores are faster; None without any."""
    ops = kernels.of_class("matmul", "convolution") & (kernels.matrix == 0)  # on fp32 units
    speedups = np.ones(len(case.tracks))  # peak of the tensor cores / fp32 peak; 1 if they are not faster
    evidence: dict[str, object] = {}
    for index, track in enumerate(case.tracks):
        fp32, tf32 = peak_tflops(track.device_name, "fp32"), peak_tflops(track.device_name, "tf32")
        half = peak_tflops(track.device_name, "fp16")
        # Tensor cores without TF32 compute in fp16.
        faster, precision = (tf32, "tf32") if fp32 and tf32 and tf32[0] > fp32[0] else (half, "fp16")
        if fp32 and faster and faster[0] > fp32[0]:
            speedups[index] = faster[0] / fp32[0]
            peaks = {"fp32": fp32[0], precision: faster[0]}  # TFLOP/s; the last such device counts
            evidence = {"peak_tflops": peaks, "peak_source": fp32[1], "precision": precision}
    track_speedup = speedups[kernels.what_if.graph.device.track]
    ops &= track_speedup > 1
    if not ops.any():
        return None
    shortest = np.fmin(kernels.duration, LAUNCH_SIZED_NS)  # starting and ending a kernel get no faster
    scenarios = []
    for reached in _REACHED_TENSOR:
        shorter = np.maximum(kernels.duration * _REACHED_FP32 / (reached * track_speedup), shortest)
        share = np.fmin(shorter / np.maximum(kernels.duration, 1.0), 1.0)
        scenarios.append(Shortening(np.where(ops, share, 1.0)))
    return SlowKernels("fp32-matmul", ops, tuple(scenarios), evidence)


def conversions(case: Case, kernels: GraphKernels) -> SlowKernels | None:
    """Return the conversions between layouts, and depthwise convolutions on contiguous tensors.

    Without conversions the result is None, because nothing shows that cuDNN prefers another layout. Channels-last
    tensors also shorten batch normalization. For cuDNN's kernels, the remaining time follows from their bytes.
    """
    ops = kernels.of_class("layout-conversion")
    if not ops.any():
        return None
    normalization = kernels.of_class("normalization") & kernels.across_rows
    at_peak = share_at_memory_peak(case, kernels, normalization & kernels.cudnn)
    scenarios = []
    for shorter, left, reached, depthwise in zip(
        _shares(ops, _CONVERSIONS_LEFT), _NORMALIZATION_LEFT, _CUDNN_NORMALIZATION_REACHED, _DEPTHWISE_LEFT, strict=True
    ):
        by_bytes = np.where(np.isnan(at_peak), left, np.fmin(at_peak / reached, 1.0))
        remaining = np.where(normalization, by_bytes, shorter.remaining)
        scenarios.append(replace(shorter, remaining=np.where(kernels.depthwise, depthwise, remaining)))
    evidence: dict[str, object] = {
        f"{name}_ms_per_step": kernels.ms_per_step(kernels.duration * chosen)
        for name, chosen in (("batch_normalization", normalization), ("depthwise", kernels.depthwise))
        if chosen.any()
    }
    return SlowKernels("layout-conversion", ops | kernels.depthwise, tuple(scenarios), evidence)


def attention_ops(kernels: GraphKernels) -> tuple[NDArray[np.bool_], Index]:
    """Return (score kernels of eager attention, bool[m]; the products before and after them, int64[k, 2]).

    The forward and the backward pass of eager attention multiply batches of matrices, apply softmax and other
    operations to the scores, and multiply again.
    """
    scores = np.zeros(len(kernels.stream), np.bool_)
    products: dict[tuple[int, int], None] = {}
    batched = kernels.of_class("matmul") & kernels.batched
    on_scores = kernels.of_class("elementwise", "random", "softmax", "copy-kernel", "reduction") & ~kernels.in_update
    for softmax in np.flatnonzero(kernels.of_class("softmax")).tolist():
        before = _reach(softmax, -1, kernels, on_scores)
        after = _reach(softmax, 1, kernels, on_scores)
        if before is not None and after is not None and batched[before] and batched[after]:
            scores[before + 1 : after] = True
            products[before, after] = None
    return scores, np.array(list(products), np.int64).reshape(-1, 2)


def _reach(start: int, direction: int, kernels: GraphKernels, passable: NDArray[np.bool_]) -> int | None:
    """Return the next kernel of the stream before (-1) or after (1) `start` that is not passable; None if none near."""
    for distance in range(1, _MOST_BETWEEN + 1):
        index = start + direction * distance
        if not 0 <= index < len(passable) or kernels.stream[index] != kernels.stream[start]:
            return None
        if not passable[index] and kernels.kernel_class[index] != NO_CLASS:  # no copy or communication
            return index
    return None


def eager_attention(
    kernels: GraphKernels, scores: NDArray[np.bool_], products: Index, operators: tuple[HostTimes, ...]
) -> SlowKernels | None:
    """Return the `scores` of `attention_ops` as slow kernels, or None; `operators` are of `replaced_by_attention`."""
    if not scores.any():
        return None
    multiplies = np.zeros(len(scores), np.bool_)
    multiplies[products] = True
    scenarios = []
    for on_scores, on_products, removed in zip(_SCORES_LEFT, _PRODUCTS_LEFT, operators, strict=True):
        # If some score kernels remain, the same share of the replaced operators remains.
        left = on_scores + (1 - on_scores) * host_left(kernels, removed)
        remaining = np.where(scores, on_scores, np.where(multiplies, on_products, 1.0))
        host = np.fmin(launch_share(kernels, scores, on_scores), left)
        scenarios.append(Shortening(remaining, gap=np.where(scores, on_scores, 1.0), host=host))
    evidence: dict[str, object] = {"products_ms_per_step": kernels.ms_per_step(kernels.duration * multiplies)}
    return SlowKernels("eager-attention", scores, tuple(scenarios), evidence)


def unfused_update(kernels: GraphKernels) -> SlowKernels | None:
    """Return the kernels of an update that runs a kernel for each operation; None if it is fused."""
    ops = kernels.in_update & kernels.of_class("optimizer") & ~kernels.fused
    if kernels.per_step(ops) <= 1:  # a single kernel is as good as fused
        return None
    small = kernels.duration <= LAUNCH_SIZED_NS
    scenarios = [
        Shortening(
            np.where(ops, np.where(small, small_left, left), 1.0),
            gap=np.where(ops, host_left, 1.0),
            host=launch_share(kernels, ops, host_left),
        )
        for left, small_left, host_left in zip(_UPDATE_LEFT, _SMALL_UPDATE_LEFT, _UPDATE_HOST_LEFT, strict=True)
    ]
    return SlowKernels("unfused-optimizer", ops, tuple(scenarios))


def elementwise_chains(kernels: GraphKernels, scores: NDArray[np.bool_], attention: HostTimes) -> SlowKernels | None:
    """Return the kernels that a compiler would fuse into a neighbour that moves the same tensor; None without any.

    Simple kernels are elementwise, random and copying kernels. In a chain of simple kernels, all but the longest are
    fused. In a chain with a reduction or normalization, all simple kernels are fused. The host times `attention` are
    not counted, because they belong to the cause `eager-attention`.
    """
    eager = ~kernels.in_update & ~kernels.fused & ~scores
    simple = kernels.of_class("elementwise", "random", "copy-kernel") & eager
    member = simple | (kernels.of_class("normalization", "reduction", "softmax") & eager)
    together = member[1:] & member[:-1] & (kernels.stream[1:] == kernels.stream[:-1])
    chain = np.cumsum(np.concatenate([[0], ~together]))  # number of each op's chain
    # Duration of each chain's longest simple kernel, the first of which is kept; infinite if a reduction is kept.
    longest = np.zeros(int(chain[-1]) + 1)
    np.maximum.at(longest, chain[member], np.where(simple, kernels.duration, np.inf)[member])
    candidates = np.flatnonzero(simple & (kernels.duration == longest[chain]))
    ops = simple.copy()
    ops[candidates[np.unique(chain[candidates], return_index=True)[1]]] = False
    if not ops.any():
        return None
    operators = replaced_by_compiler(kernels, ops, member, chain, attention)
    scenarios = [
        replace(shorter, host=host_left(kernels, removed))
        for shorter, removed in zip(_shares(ops, _FUSED_LEFT), operators, strict=True)
    ]
    return SlowKernels("unfused-elementwise", ops, tuple(scenarios))


def launch_sized(kernels: GraphKernels) -> SlowKernels | None:
    """Return the launch-sized kernels that were queued, so that the device causes their gaps; None without any."""
    device = kernels.what_if.graph.device
    gap = kernels.what_if.corrected.gap
    ops = (kernels.duration <= LAUNCH_SIZED_NS) & (kernels.kernel_class != NO_CLASS)
    ops &= (gap > GAP_IN_GRAPH_NS) & (gap <= QUEUED_NS) & (device.launch != NONE)
    if not ops.any():
        return None
    share = np.where(ops, GAP_IN_GRAPH_NS / np.maximum(gap, GAP_IN_GRAPH_NS), 1.0)
    keep = np.ones(len(ops))
    # By the low estimate, gaps shrink by half as much.
    expected, low = Shortening(keep, gap=share), Shortening(keep, gap=(1 + share) / 2)
    high = Shortening(np.where(ops, 0.5, 1.0), gap=share)  # fused kernels also compute for a shorter time
    return SlowKernels("small-kernels", ops, (expected, low, high))


def _shares(ops: NDArray[np.bool_], shares: tuple[float, ...]) -> tuple[Shortening, ...]:
    return tuple(Shortening(np.where(ops, share, 1.0), gap=np.where(ops, share, 1.0)) for share in shares)
