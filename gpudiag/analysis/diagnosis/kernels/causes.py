"""Estimate the savings of kernels without each cause of slow compute.

Each function returns an expected, a low and a high estimate, because a trace does not show how long the kernels that
would replace the recorded ones take. The estimates follow from the device's peaks and from the bytes that kernels move:

* fp32 on tensor cores: time falls by the ratio of the FLOP rates that kernels reach, each a share of a peak.
* Conversions of layouts move bytes that channels-last tensors need not move.
* Eager attention writes and reads the scores of all pairs of tokens in each kernel. Fused attention keeps the scores on
  chip, and computes them once more in the backward pass.
* An unfused update reads and writes each tensor once per operation. A fused update reads and writes each tensor once.
* A chain of elementwise kernels reads and writes its tensors once per kernel. A compiled chain does this once.
* In a full launch queue a launch-sized kernel begins 1.2 µs after the previous kernel, in a CUDA graph 0.45 µs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.compute.kernel_class import KernelClass
from gpudiag.analysis.compute.work import CLASS_CODES, LAUNCH_SIZED_NS, NO_CLASS, ComputeWork
from gpudiag.analysis.diagnosis.calibration import GAP_IN_GRAPH_NS, QUEUED_NS
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.simulation.graph import NONE, Index, Scenario, Times
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.compute_rates import peak_tflops
from gpudiag.model.timeline import UNKNOWN


@dataclass(frozen=True, eq=False)
class GraphKernels:
    """Columns of the m ops of a graph, as in `TrackKernels`.

    Attributes:
        stream: int64[m], index into the graph's streams; ops of one stream are consecutive and in order.
    """

    what_if: WhatIf
    kernel_class: NDArray[np.uint8]
    operator: Index
    in_update: NDArray[np.bool_]
    matrix: NDArray[np.int8]
    fused: NDArray[np.bool_]
    batched: NDArray[np.bool_]
    stream: Index

    def of_class(self, *classes: KernelClass) -> NDArray[np.bool_]:
        """Return bool[m]: the ops of these classes."""
        wanted = np.zeros(NO_CLASS + 1, np.bool_)
        wanted[[CLASS_CODES[name] for name in classes]] = True
        return wanted[self.kernel_class]

    @property
    def duration(self) -> Times:
        """Return float64[m], ns: recorded durations."""
        device = self.what_if.graph.device
        return device.end - device.start

    def ms_per_step(self, values_ns: Times) -> float:
        """Return the sum of float64[m] in ms per step, the maximum over device tracks."""
        graph = self.what_if.graph
        return float(np.bincount(graph.device.track, weights=values_ns).max(initial=0.0)) / graph.steps / 1e6

    def per_step(self, chosen: NDArray[np.bool_]) -> float:
        """Return the number of chosen ops per step and track."""
        graph = self.what_if.graph
        return float(chosen.sum()) / graph.steps / max(len(np.unique(graph.device.track)), 1)


@dataclass(frozen=True, eq=False)
class Shortening:
    """Shares of durations, gaps and host work that remain if a cause is removed.

    Attributes:
        remaining: float64[m], share of the op's duration that remains.
        gap: float64[m], share of the gap before the op that remains.
        host: float64[n], share of host work that remains before each node.
    """

    remaining: Times
    gap: Times | None = None
    host: Times | None = None

    def __call__(self, what_if: WhatIf, scenario: Scenario) -> Scenario:
        """Return the scenario without the cause."""
        shorter = replace(scenario, duration=scenario.duration * self.remaining)
        if self.gap is not None:
            shorter = replace(shorter, gap=np.where(scenario.gap > 0, scenario.gap * self.gap, scenario.gap))
        if self.host is not None:
            # A slow call is no launch, and other findings report it.
            slow = np.fmin(what_if.graph.host.slow, scenario.busy)
            kept = np.fmin(scenario.busy, what_if.model.communication.busy)
            shorter = replace(shorter, busy=np.maximum(slow + (scenario.busy - slow) * self.host, kept))
        return shorter


def graph_kernels(case: Case, what_if: WhatIf) -> GraphKernels | None:
    """Return the classes of the graph's ops; None if the kernels were not classified, or on CPUs."""
    if case.work is None or not case.tracks or case.tracks[0].is_cpu:
        return None
    device = what_if.graph.device
    columns = _columns(case.work, device.track, device.row)
    stream = np.zeros(len(device.row), np.int64)
    for index, (first, after) in enumerate(what_if.graph.streams):
        stream[first:after] = index
    return GraphKernels(what_if=what_if, stream=stream, **columns)


def _columns(work: ComputeWork, track: Index, row: Index) -> dict[str, NDArray[Any]]:
    """Return the columns of `TrackKernels` for ops given by track and event row; placeholders where unclassified."""
    columns: dict[str, NDArray[Any]] = {
        "kernel_class": np.full(len(row), NO_CLASS, np.uint8),
        "operator": np.full(len(row), UNKNOWN, np.int64),
        "in_update": np.zeros(len(row), np.bool_),
        "matrix": np.full(len(row), UNKNOWN, np.int8),
        "fused": np.zeros(len(row), np.bool_),
        "batched": np.zeros(len(row), np.bool_),
    }
    for index, table in enumerate(work.tracks):
        ops = np.flatnonzero(track == index)
        if not len(ops) or not len(table.row):
            continue
        order = np.argsort(table.row, kind="stable")
        position = order[np.minimum(np.searchsorted(table.row[order], row[ops]), len(order) - 1)]
        known = table.row[position] == row[ops]
        for name, column in columns.items():
            column[ops[known]] = getattr(table, name)[position[known]]
    return columns


def launch_share(kernels: GraphKernels, chosen: NDArray[np.bool_], remaining: float) -> Times:
    """Return float64[n]: share of host work that remains if the launches of these ops shrink to `remaining`."""
    host, device = kernels.what_if.graph.host, kernels.what_if.graph.device
    share = np.ones(len(host.busy))
    launches = device.launch[chosen]
    share[launches[launches != NONE]] = remaining
    return share


def removed_ms(shortening: Shortening, kernels: GraphKernels) -> float:
    """Return the removed time of ops and of the gaps before them, in ms per step, the maximum over device tracks."""
    removed = kernels.duration * (1 - shortening.remaining)
    if shortening.gap is not None:
        removed += np.maximum(kernels.what_if.corrected.gap, 0.0) * (1 - shortening.gap)
    return kernels.ms_per_step(removed)


def removed_host_ms(shortening: Shortening, kernels: GraphKernels) -> float:
    """Return the removed host work, in ms per step, the maximum over processes."""
    if shortening.host is None:
        return 0.0
    graph = kernels.what_if.graph
    removed = kernels.what_if.corrected.busy * (1 - shortening.host)
    return float(np.bincount(graph.host.process, weights=removed).max(initial=0.0)) / graph.steps / 1e6


CauseName = Literal[
    "fp32-matmul",
    "layout-conversion",
    "eager-attention",
    "unfused-optimizer",
    "unfused-elementwise",
    "small-kernels",
]

#: Share of the fp32 peak that a matrix kernel reaches without tensor cores. Measured: 0.8 to 0.95 in cuBLAS.
_REACHED_FP32 = 0.85
# The tuples below are (expected, low, high) estimates of the savings.
#: Share of the tensor cores' peak that kernels reach. Measured (H100, tf32): 0.4 in a GPT-2, 0.6 in a ViT, and 0.16 in
#: products with 64 rows, which are memory-bound.
_REACHED_TENSOR = (0.5, 0.2, 0.8)
#: Share of conversions that remains with channels-last tensors: conversions of the input, and between precisions.
_CONVERSIONS_LEFT = (0.1, 0.4, 0.0)
#: Share of a normalization's time that remains with channels-last tensors, which its kernels read only once. Measured
#: (H100): 0.55 in a ResNet-50; other models changed little, so that more is expected to remain.
_NORMALIZATION_LEFT = (0.65, 1.0, 0.55)
#: Shares of the time of score kernels, and of the matrix products beside them, that remain with fused attention.
#: Physical: fused attention computes one of six products again; causal attention skips up to half of the products.
_SCORES_LEFT = (0.0, 0.35, 0.0)
_PRODUCTS_LEFT = (7 / 6, 1.35, 0.8)
#: Share of an update's time that remains if it is fused. Physical: Adam reads and writes 18 tensors unfused, and seven
#: fused. SGD with momentum reads and writes eight tensors unfused, and five fused.
_UPDATE_LEFT = (0.45, 0.65, 0.35)
#: The share that remains of launch-sized kernels of an update, because one fused kernel replaces hundreds of them.
_SMALL_UPDATE_LEFT = (0.1, 0.3, 0.05)
#: The share that remains of an update's launches and gaps if the update is fused.
_UPDATE_HOST_LEFT = (0.2, 0.4, 0.1)
#: Share of an elementwise kernel's time that remains if it is fused into a longer one: reading its other operands.
_FUSED_LEFT = (0.35, 0.6, 0.15)
#: Maximum number of kernels between a matrix product and the softmax of attention.
_MOST_BETWEEN = 12


@dataclass(frozen=True, eq=False)
class SlowKernels:
    """Kernels that a change would shorten.

    Attributes:
        name: the cause.
        ops: bool[m], the kernels.
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
    candidates = [
        fp32_products(case, kernels),
        conversions(kernels),
        eager_attention(kernels, scores, products),
        unfused_update(kernels),
        elementwise_chains(kernels, scores),
        launch_sized(kernels),
    ]
    return [slow for slow in candidates if slow is not None]


def fp32_products(case: Case, kernels: GraphKernels) -> SlowKernels | None:
    """Return the fp32 matrix products without tensor cores, on devices whose tensor cores are faster."""
    ops = kernels.of_class("matmul", "convolution") & (kernels.matrix == 0)
    speedups = np.ones(len(case.tracks))
    evidence: dict[str, object] = {}
    for index, track in enumerate(case.tracks):
        fp32, tf32 = peak_tflops(track.device_name, "fp32"), peak_tflops(track.device_name, "tf32")
        half = peak_tflops(track.device_name, "fp16")
        faster, precision = (tf32, "tf32") if fp32 and tf32 and tf32[0] > fp32[0] else (half, "fp16")
        if fp32 and faster and faster[0] > fp32[0]:
            speedups[index] = faster[0] / fp32[0]
            evidence = {
                "peak_tflops": {"fp32": fp32[0], precision: faster[0]},
                "peak_source": fp32[1],
                "precision": precision,
            }
    track_speedup = speedups[kernels.what_if.graph.device.track]
    ops &= track_speedup > 1
    if not ops.any():
        return None
    shortest = np.fmin(kernels.duration, LAUNCH_SIZED_NS)
    scenarios = []
    for reached in _REACHED_TENSOR:
        shorter = np.maximum(kernels.duration * _REACHED_FP32 / (reached * track_speedup), shortest)
        share = np.fmin(shorter / np.maximum(kernels.duration, 1.0), 1.0)
        scenarios.append(Shortening(np.where(ops, share, 1.0)))
    return SlowKernels("fp32-matmul", ops, tuple(scenarios), evidence)


def conversions(kernels: GraphKernels) -> SlowKernels | None:
    """Return the conversions between layouts."""
    ops = kernels.of_class("layout-conversion")
    if not ops.any():
        return None
    normalization = kernels.of_class("normalization")
    scenarios = [
        replace(shorter, remaining=np.where(normalization, left, shorter.remaining))
        for shorter, left in zip(_shares(ops, _CONVERSIONS_LEFT), _NORMALIZATION_LEFT, strict=True)
    ]
    return SlowKernels("layout-conversion", ops, tuple(scenarios))


def attention_ops(kernels: GraphKernels) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return (bool[m] kernels of scores, bool[m] the products before and after them) of eager attention.

    Eager attention, and its backward pass likewise, multiplies batches of matrices, applies softmax and other
    operations to the scores, and multiplies again.
    """
    scores, products = (np.zeros(len(kernels.stream), np.bool_) for _ in range(2))
    batched = kernels.of_class("matmul") & kernels.batched
    on_scores = kernels.of_class("elementwise", "random", "softmax", "copy-kernel", "reduction") & ~kernels.in_update
    for softmax in np.flatnonzero(kernels.of_class("softmax")).tolist():
        before = _reach(softmax, -1, kernels, on_scores)
        after = _reach(softmax, 1, kernels, on_scores)
        if before is not None and after is not None and batched[before] and batched[after]:
            scores[before + 1 : after] = True
            products[[before, after]] = True
    return scores, products


def _reach(start: int, direction: int, kernels: GraphKernels, passable: NDArray[np.bool_]) -> int | None:
    """Return the first op of the stream, before (-1) or after (1) `start`, that is not passable; None if too far."""
    for distance in range(1, _MOST_BETWEEN + 1):
        index = start + direction * distance
        if not 0 <= index < len(passable) or kernels.stream[index] != kernels.stream[start]:
            return None
        if not passable[index] and kernels.kernel_class[index] != NO_CLASS:
            return index
    return None


def eager_attention(
    kernels: GraphKernels, scores: NDArray[np.bool_], products: NDArray[np.bool_]
) -> SlowKernels | None:
    """Return the score kernels of unfused attention."""
    if not scores.any():
        return None
    scenarios = [
        Shortening(
            np.where(scores, on_scores, np.where(products, on_products, 1.0)),
            gap=np.where(scores, on_scores, 1.0),
            host=launch_share(kernels, scores, on_scores),
        )
        for on_scores, on_products in zip(_SCORES_LEFT, _PRODUCTS_LEFT, strict=True)
    ]
    evidence: dict[str, object] = {"products_ms_per_step": kernels.ms_per_step(kernels.duration * products)}
    return SlowKernels("eager-attention", scores, tuple(scenarios), evidence)


def unfused_update(kernels: GraphKernels) -> SlowKernels | None:
    """Return the kernels of an update that runs a kernel for each operation."""
    ops = kernels.in_update & kernels.of_class("optimizer") & ~kernels.fused
    if kernels.per_step(ops) <= 1:
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


def elementwise_chains(kernels: GraphKernels, scores: NDArray[np.bool_]) -> SlowKernels | None:
    """Return the kernels that a compiler would fuse into a neighbour that moves the same tensor.

    In a chain of simple kernels, all but the longest are fused. In a chain with a reduction or normalization, all
    simple kernels are fused.
    """
    eager = ~kernels.in_update & ~kernels.fused & ~scores
    simple = kernels.of_class("elementwise", "random", "copy-kernel") & eager
    member = simple | (kernels.of_class("normalization", "reduction", "softmax") & eager)
    together = member[1:] & member[:-1] & (kernels.stream[1:] == kernels.stream[:-1])
    chain = np.cumsum(np.concatenate([[0], ~together]))
    longest = np.zeros(int(chain[-1]) + 1)
    np.maximum.at(longest, chain[member], np.where(simple, kernels.duration, np.inf)[member])
    candidates = np.flatnonzero(simple & (kernels.duration == longest[chain]))
    ops = simple.copy()
    ops[candidates[np.unique(chain[candidates], return_index=True)[1]]] = False
    return SlowKernels("unfused-elementwise", ops, _shares(ops, _FUSED_LEFT)) if ops.any() else None


def launch_sized(kernels: GraphKernels) -> SlowKernels | None:
    """Return the launch-sized kernels that were queued, so that the device and not the host causes their gaps."""
    device = kernels.what_if.graph.device
    gap = kernels.what_if.corrected.gap
    ops = (kernels.duration <= LAUNCH_SIZED_NS) & (kernels.kernel_class != NO_CLASS)
    ops &= (gap > GAP_IN_GRAPH_NS) & (gap <= QUEUED_NS) & (device.launch != NONE)
    if not ops.any():
        return None
    share = np.where(ops, GAP_IN_GRAPH_NS / np.maximum(gap, GAP_IN_GRAPH_NS), 1.0)
    keep = np.ones(len(ops))
    return SlowKernels(
        "small-kernels",
        ops,
        (
            Shortening(keep, gap=share),
            Shortening(keep, gap=(1 + share) / 2),
            Shortening(np.where(ops, 0.5, 1.0), gap=share),
        ),
    )


def _shares(ops: NDArray[np.bool_], shares: tuple[float, ...]) -> tuple[Shortening, ...]:
    return tuple(Shortening(np.where(ops, share, 1.0), gap=np.where(ops, share, 1.0)) for share in shares)
