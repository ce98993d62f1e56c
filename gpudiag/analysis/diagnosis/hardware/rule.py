"""Shared code of hardware rules: their interface, measured rates of links, and wording."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import ClassVar, Protocol

from gpudiag.model.analysis import Finding
from gpudiag.model.facts import Bandwidth, Facts, Gpu

#: The reason why hardware findings have no savings in ms.
NO_TRACE = "facts alone do not say how much of a step this costs; profile a job on this machine to learn that"

TO_DEVICE = "host_to_device"
FROM_DEVICE = "device_to_host"

#: PCIe generation → GB/s per lane and direction, before protocol overhead. Line coding is subtracted: 8b/10b in
#: generations 1 and 2, 128b/130b in 3 to 5, and flit mode with its checksum in 6 (PCI-SIG, PCI Express Base
#: Specification).
_GB_PER_S_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
#: Indices of two GPUs.
Pair = tuple[int, int]
#: fp32 gradients of ResNet-50: 25,557,032 parameters of four bytes.
RESNET50_GRADIENT_BYTES = 102_228_128


class FactsRule(Protocol):
    """Judge the facts of a machine. The class docstring is the finding's page in docs/findings.

    tests/analysis/diagnosis/rule_examples has machines with and without findings of each rule.
    """

    code: ClassVar[str]

    def examine(self, facts: Facts) -> tuple[Finding, ...]:
        """Return the findings that the facts prove, worst first."""
        ...


def raw_gb_per_s(generation: int | None, width: int | None) -> float | None:
    """Return a PCIe link's GB/s one way, before headers and flow control; None if generation or width is unknown."""
    lane = _GB_PER_S_PER_LANE.get(generation) if generation is not None else None
    return None if lane is None or not width else lane * width


def gpu_index(end: str) -> int | None:
    """Return the index in `gpu:<i>`; None for any other endpoint of a copy."""
    kind, _, number = end.partition(":")
    return int(number) if kind == "gpu" and number.isascii() and number.isdigit() else None


def host_rates(facts: Facts, direction: str = "one_way") -> dict[int, dict[str, Bandwidth]]:
    """Return GPU → path → fastest pinned copy on that path between the GPU and any NUMA node of the host.

    `direction` is that of `peer_rates`.
    """
    rates: dict[int, dict[str, Bandwidth]] = defaultdict(dict)
    for record in _pinned(facts, direction):
        index = gpu_index(record.dst if record.path == TO_DEVICE else record.src)
        if index is None:
            continue
        known = rates[index].get(record.path)
        if known is None or record.gb_per_s > known.gb_per_s:
            rates[index][record.path] = record
    return dict(rates)


def all_at_once(facts: Facts) -> list[Bandwidth]:
    """Return the one-way copies between the host and all GPUs at once; their `per_device` has each GPU's rate."""
    return [r for r in _pinned(facts, "one_way") if "all" in {r.src, r.dst} and r.per_device]


def _pinned(facts: Facts, direction: str) -> list[Bandwidth]:
    return [
        record
        for record in facts.bandwidth
        if record.path in {TO_DEVICE, FROM_DEVICE} and record.memory == "pinned" and record.direction == direction
    ]


def peer_rates(facts: Facts, *, peer_access: bool, direction: str) -> dict[Pair, Bandwidth]:
    """Return (source GPU, destination GPU) → fastest copy with peer access on or off, whichever GPU started it.

    `direction` is "one_way", or "both_ways" for copies in both directions at once, with the sum of both rates.
    """
    rates: dict[Pair, Bandwidth] = {}
    for record in facts.bandwidth:
        source, destination = gpu_index(record.src), gpu_index(record.dst)
        if record.path != "peer" or record.direction != direction or bool(record.peer_access) != peer_access:
            continue
        if source is None or destination is None or source == destination:
            continue
        known = rates.get((source, destination))
        if known is None or record.gb_per_s > known.gb_per_s:
            rates[source, destination] = record
    return rates


def gpu_list(indices: Iterable[int]) -> str:
    """Return `GPU 3`, `GPUs 0 and 2`, or `GPUs 0-5`."""
    numbers = sorted(set(indices))
    spans = _spans(numbers)
    joined = spans[0] if len(spans) == 1 else f"{', '.join(spans[:-1])} and {spans[-1]}" if spans else "none"
    return f"GPU {joined}" if len(numbers) == 1 else f"GPUs {joined}"


def _spans(numbers: Sequence[int]) -> list[str]:
    """Write three or more consecutive numbers as a range, and other numbers singly."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [span for run in runs for span in ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run))]


def gpu_list_with_models(indices: Iterable[int], gpus: Iterable[Gpu]) -> str:
    """Return `gpu_list` with the models in parentheses: `GPUs 0-5 (GeForce GTX 1070)`."""
    wanted = set(indices)
    models = dict.fromkeys(gpu.name for gpu in gpus if gpu.index in wanted)
    return f"{gpu_list(wanted)} ({', '.join(models)})" if models else gpu_list(wanted)


def pair_list(pairs: Iterable[Pair]) -> str:
    """Return `0↔4`, or `0↔4, 1↔5 and 3 more`: pairs of GPUs, at most six by name."""
    return _first([f"{a}↔{b}" for a, b in sorted(set(pairs))], 6)


def first_four(names: Sequence[str]) -> str:
    """Join names, at most four: `a, b, c, d and 2 more`."""
    return _first(names, 4)


def _first(names: Sequence[str], most: int) -> str:
    omitted = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + omitted


def gradient_cost(gb_per_s: float) -> str:
    """Describe the effect of a bandwidth on training by the time for ResNet-50's gradients.

    Sending the gradients once takes bytes / bandwidth. An all-reduce over n GPUs sends the gradients 2(n-1)/n times.
    """
    once_ms = RESNET50_GRADIENT_BYTES / gb_per_s / 1e6
    return f"ResNet-50's 102 MB of gradients take {once_ms:.{0 if once_ms >= 10 else 1}f} ms to cross it once"
