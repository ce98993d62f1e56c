"""Draw a job: the operations of every rank in a step, the faults, and the way of recording."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Literal

import msgspec

from tests.analysis.diagnosis.rule_examples.jobs import (
    Job,
    Piece,
    all_reduce,
    collection,
    fetch,
    host_copy,
    item,
    kernels,
    memory,
    python,
    silence,
    update,
)

Kind = Literal[
    "loader",
    "loader-unmarked",
    "loader-one",
    "loader-unmarked-one",
    "stall",
    "stall-one",
    "operator",
    "operator-one",
    "compute-one",
    "launch-one",
    "host-one",
    "stall-sometimes",
    "collection",
    "pageable",
    "copy",
    "small-copies",
    "item",
    "allocation",
    "allocation-one",
    "jitter",
]
#: Kinds of jobs without a fault, in which one of the costs that every job has is large.
Cost = Literal["tiny-kernels", "slow-host", "slow-exchange"]

#: A job has at most one fault of each family, because two faults of a family could not be distinguished.
_FAMILIES: tuple[tuple[Kind, ...], ...] = (
    ("loader", "loader-unmarked"),
    ("stall", "operator"),
    (
        "loader-one",
        "loader-unmarked-one",
        "stall-one",
        "operator-one",
        "compute-one",
        "launch-one",
        "host-one",
        "stall-sometimes",
        "collection",
        "allocation-one",
        "jitter",
    ),
    ("pageable", "copy", "small-copies"),
    ("item",),
    ("allocation",),
)
KINDS: tuple[Kind, ...] = tuple(kind for family in _FAMILIES for kind in family)
COSTS: tuple[Cost, ...] = ("tiny-kernels", "slow-host", "slow-exchange")
#: The allowed values of `Recipe.kind`.
ALL_KINDS: tuple[str, ...] = ("none", *COSTS, *KINDS, "two")
_NEEDS_PEERS = frozenset(_FAMILIES[2])
_SOMETIMES = frozenset({"stall-sometimes", "collection"})
#: Number of small copies in a step.
_COPIES = 60
#: Number of memory blocks that a step requests from the driver.
_BLOCKS = 40


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of one rank, or of all ranks if `rank` is None.

    Attributes:
        ms: cost in ms per step; for `launch-one`, in µs per launch.
        times: factor by which the host of `host-one` is slower.
        layer: index of the layer after which a fault within the step occurs.
        sometimes: (rank, step, ms) of each occurrence; empty if the fault occurs in every step.
    """

    kind: Kind
    ms: float = 0.0
    times: float = 1.0
    rank: int | None = None
    layer: int = 0
    sometimes: tuple[tuple[int, int, float], ...] = ()


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer: `count` kernels that take `ms` in total, and an all-reduce of `exchange_ms` after them (None: none)."""

    ms: float
    count: int
    exchange_ms: float | None


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """A job that can be simulated with and without each of its causes.

    Attributes:
        kind: one of `ALL_KINDS`.
        layers: the forward layers, then the backward layers.
        launch_us, recording_ns: host time per kernel launch, and profiler overhead per recorded host event.
        fetch_ms, update_ms: the usual wait for the next batch on all ranks; duration of the optimizer's kernel.
        scatter: relative standard deviation of kernel times between steps.
        timed: whether gpudiag also gets the job's unprofiled step times.
    """

    seed: int
    kind: str
    ranks: int
    layers: tuple[Layer, ...]
    launch_us: float
    fetch_ms: float
    update_ms: float
    scatter: float
    recording_ns: int
    timed: bool
    faults: tuple[Fault, ...]
    steps: int = 8

    def job(self, without: Collection[str] = (), *, recorded: bool = True) -> Job:
        """Return the job without some of its causes.

        `without` contains kinds of faults, or names of costs: `launching`, `exchange`, `input`, `scatter`, `blocking`.
        Without `blocking`, copies do not block the host. If `recorded` is false, the hosts have no profiler overhead.
        """
        ranks = range(self.ranks)
        there = [fault for fault in self.faults if fault.kind not in without]
        places = {(rank, step) for fault in there for rank, step, _ in fault.sometimes}
        return Job(
            ranks=self.ranks,
            step=(),
            own={rank: tuple(self._step(rank, without)) for rank in ranks},
            sometimes={(rank, step): tuple(self._step(rank, without, step)) for rank, step in places},
            host_pace={fault.rank: fault.times for fault in there if fault.rank is not None and fault.times > 1},
            steps=self.steps,
            scatter=0.0 if "scatter" in without else self.scatter,
            seed=self.seed,
            recording_ns=self.recording_ns if recorded else 0,
        )

    def _step(self, rank: int, without: Collection[str], number: int | None = None) -> list[Piece]:
        """Return a rank's operations in step `number`; if it is None, in a step without occasional faults."""
        faults: dict[Kind, Fault] = {}
        for fault in self.faults:
            if fault.kind not in without and fault.rank in {None, rank}:
                # A fault with `sometimes` occurs only in the steps listed there, at the cost listed there.
                costs_ms = [ms for whose, step, ms in fault.sometimes if (whose, step) == (rank, number)]
                if costs_ms or not fault.sometimes:
                    faults[fault.kind] = msgspec.structs.replace(fault, ms=sum(costs_ms) or fault.ms)
        input_ms = self.fetch_ms + sum(faults[kind].ms for kind in ("loader", "loader-one") if kind in faults)
        unmarked = [faults[kind].ms for kind in ("loader-unmarked", "loader-unmarked-one") if kind in faults]
        pieces: list[Piece] = []
        if "input" not in without:
            pieces += [silence(ms) for ms in unmarked]
            if input_ms > 0:
                pieces.append(fetch(input_ms))
        elif "loader-one" in faults or "loader-unmarked-one" in faults:
            # Without the input that all ranks wait for, the additional wait of one rank remains.
            pieces += [silence(ms) for ms in unmarked]
            pieces += [fetch(faults["loader-one"].ms)] if "loader-one" in faults else []
        moved = [faults[kind].ms for kind in ("allocation", "allocation-one") if kind in faults]
        # Allocation takes 80 % of the fault's cost, release at the step's end 20 %.
        pieces += [memory(0.8 * ms / _BLOCKS, count=_BLOCKS) for ms in moved]
        pinned = "blocking" in without
        # Sizes are such that pageable memory is copied at 6 GB/s, and pinned memory at 50 GB/s.
        if "pageable" in faults:
            pieces.append(host_copy(faults["pageable"].ms, megabytes=6 * faults["pageable"].ms, pinned=pinned))
        if "copy" in faults:
            pieces.append(host_copy(faults["copy"].ms, megabytes=50 * faults["copy"].ms))
        if "small-copies" in faults:
            pieces += _COPIES * [host_copy(faults["small-copies"].ms / _COPIES, megabytes=0.1, pinned=pinned)]
        launch_us = self.launch_us + (faults["launch-one"].ms if "launch-one" in faults else 0.0)
        launch_us = 0.0 if "launching" in without else launch_us
        for index, layer in enumerate(self.layers):
            pieces.append(kernels(layer.ms, count=layer.count, launch_us=launch_us))
            pieces += self._after(index, faults, launch_us)
            if layer.exchange_ms is not None and self.ranks > 1:
                pieces.append(all_reduce(0.0 if "exchange" in without else layer.exchange_ms))
        given_back = [memory(0.2 * ms / _BLOCKS, count=_BLOCKS, released=True) for ms in moved]
        return [*pieces, update(self.update_ms), *given_back]

    def _after(self, layer: int, faults: dict[Kind, Fault], launch_us: float) -> list[Piece]:
        """Return the operations of faults after a layer; the fault `item` occurs after every layer."""
        found: list[Piece] = []
        for fault in faults.values():
            here = fault.layer == layer
            if fault.kind in {"stall", "stall-one", "stall-sometimes"} and here:
                found.append(silence(fault.ms))
            elif fault.kind == "collection" and here:
                found.append(collection(fault.ms))
            elif fault.kind in {"operator", "operator-one"} and here:
                found.append(python(fault.ms, "aten::_cudnn_attention_forward"))
            elif fault.kind in {"compute-one", "jitter"} and here:
                found.append(kernels(fault.ms, count=4, launch_us=launch_us))
            elif fault.kind == "item":
                found.append(item())
        return found


def draw(seed: int, kind: str | None = None) -> Recipe:
    """Return the job of a seed, of kind `kind` if given, else of a random kind."""
    chance = random.Random(seed)  # noqa: S311
    weights = [2 if name in {"none", "loader", "two"} else 1 for name in ALL_KINDS]
    drawn = chance.choices(ALL_KINDS, weights)[0]  # also if `kind` is given, so that later draws are the same
    kind = kind or drawn
    ranks = chance.choice((1, 2, 2, 3, 4, 4, 8))
    kinds = _kinds(kind, chance)
    if any(kind in _NEEDS_PEERS for kind in kinds) or kind == "slow-exchange":
        ranks = max(ranks, 2)
    device_ms = chance.uniform(0.4, 1.2) if kind == "tiny-kernels" else chance.uniform(8, 40)
    layers = _layers(chance, device_ms, communication=chance.choice((0.1, 0.3, 0.6, 1.0)), tiny=False)
    # Launching takes 10 to 90 % of kernel time, so it is mostly hidden; a launch takes 12 to 1500 µs.
    launch_us = min(max(1000 * device_ms * chance.uniform(0.1, 0.9) / sum(layer.count for layer in layers), 12), 1500)
    # If the loader is unmarked, not even its usual fetch is marked.
    fetch_ms = (
        0.0
        if any(kind.startswith("loader-unmarked") for kind in kinds)
        else device_ms * chance.choice((0.0, 0.01, 0.05))
    )
    if kind == "tiny-kernels":
        launch_us = chance.uniform(12, 40)
        layers = _layers(chance, device_ms, communication=0.1, tiny=True)
    elif kind == "slow-host":
        launch_us = 1000 * device_ms * chance.uniform(1.1, 2) / sum(layer.count for layer in layers)
    elif kind == "slow-exchange":
        layers = _layers(chance, device_ms, communication=chance.uniform(1.2, 4), tiny=False)
    timed = chance.random() < 0.6
    # Measured overheads are 1.0 to 2.4 µs. Without unprofiled steps gpudiag assumes the usual overhead, so the drawn
    # overhead is near the usual one.
    recording_us = chance.uniform(1.0, 2.4) if timed else chance.gauss(1.27, 0.06)
    base = Recipe(
        seed=seed,
        kind=kind,
        ranks=ranks,
        layers=layers,
        launch_us=launch_us,
        fetch_ms=fetch_ms,
        update_ms=chance.uniform(0.1, 0.1 * device_ms),
        scatter=chance.choice((0.0, 0.005, 0.01, 0.02)),
        recording_ns=round(1000 * recording_us),
        timed=timed,
        faults=(),
    )
    step_ms = _mean(base.job(recorded=False).step_times_ms())
    return msgspec.structs.replace(base, faults=tuple(_fault(kind, base, step_ms, chance) for kind in kinds))


def _kinds(kind: str, chance: random.Random) -> tuple[Kind, ...]:
    if kind == "two":
        return tuple(chance.choice(family) for family in chance.sample(_FAMILIES, 2))
    return tuple(known for known in KINDS if known == kind)


def _layers(chance: random.Random, device_ms: float, *, communication: float, tiny: bool) -> tuple[Layer, ...]:
    """Draw forward layers, and backward layers with an all-reduce each.

    The kernels of all layers take `device_ms`. The time of an all-reduce is `communication` times the time of the
    layer's kernels, times a random factor. If `tiny`, each layer has more and therefore shorter kernels.
    """
    forward, backward = chance.randint(1, 2), chance.randint(1, 4)
    parts = [chance.uniform(0.5, 1.5) for _ in range(forward + backward)]
    layers = []
    for index, part in enumerate(parts):
        ms = device_ms * part / sum(parts)
        exchange_ms = None if index < forward else communication * ms * chance.uniform(0.5, 1.5)
        count = chance.randint(25, 60) if tiny else chance.randint(4, 12)
        layers.append(Layer(ms=ms, count=count, exchange_ms=exchange_ms))
    return tuple(layers)


def _fault(kind: Kind, base: Recipe, step_ms: float, chance: random.Random) -> Fault:
    """Draw a fault for the job `base` whose step takes `step_ms`.

    Its cost is proportional to `step_ms`, except for `launch-one` and `host-one`. No fault is after the last layer.
    """
    ms = step_ms * chance.uniform(0.15, 1.2)
    rank = chance.randrange(base.ranks) if kind.endswith("-one") or kind in _SOMETIMES else None
    layer = chance.randrange(len(base.layers) - 1)
    if kind == "launch-one":
        # for kind `launch-one`, `ms` is in µs per launch
        ms = base.launch_us * chance.uniform(0.5, 3)
    elif kind in {"pageable", "copy"}:
        ms *= 0.5
    elif kind == "small-copies":
        ms *= 0.1
    elif kind == "host-one":
        return Fault(kind=kind, rank=rank, times=chance.uniform(1.3, 4))
    elif kind in _SOMETIMES and rank is not None:
        # The fault is in every other step, as logging or garbage collection may be, so it costs twice the mean there.
        late = [(rank, step, 2 * ms * chance.uniform(0.8, 1.2)) for step in range(chance.randrange(2), base.steps, 2)]
        return Fault(kind=kind, rank=rank, layer=layer, sometimes=tuple(late))
    elif kind == "jitter":
        # In each step another rank is late, in a random but fixed order.
        turns = chance.sample(range(base.ranks), base.ranks) * base.steps
        late = [(turns[step], step, 0.5 * ms * chance.uniform(0.5, 1.5)) for step in range(base.steps)]
        return Fault(kind=kind, layer=layer, sometimes=tuple(late))
    return Fault(kind=kind, ms=ms, rank=rank, layer=layer)


def _mean(values: Collection[float]) -> float:
    return sum(values) / len(values)
