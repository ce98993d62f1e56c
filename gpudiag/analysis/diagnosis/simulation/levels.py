"""Parts of a step, what each rank's peers need of them, and the replay with all ranks level."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import OFTEN
from gpudiag.analysis.diagnosis.simulation.excess import Excess, above_peers
from gpudiag.analysis.diagnosis.simulation.graph import NONE, Block, Costs
from gpudiag.analysis.diagnosis.simulation.level_between_ranks import above_level, lower_median
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.event import any_of
from gpudiag.model.timeline import OpClass

Part = Literal["input", "stall", "operators", "allocation", "sync", "launch", "compute", "copy"]
#: Waiting for data; the thread elsewhere; single slow calls; waiting for the device in synchronizations; all other work
#: of the host, memory taken from the driver included; kernels; copies.
PARTS: tuple[Part, ...] = ("input", "stall", "operators", "sync", "launch", "compute", "copy")
_ON_DEVICE = frozenset({"compute", "copy"})
_WAITING = frozenset({"stall", "input"})


def amount(what_if: WhatIf, costs: Costs, part: Part) -> NDArray[np.float64]:
    """float64[n or m], ns: what of each host node, or of each op, is this part."""
    if part in _ON_DEVICE:
        op_class = OpClass.COMPUTE if part == "compute" else OpClass.COPY
        return np.where(any_of(what_if.graph.device.op_class, op_class), costs.duration, 0.0)
    if part in _WAITING:
        stalled = np.fmin(what_if.stalled, costs.waiting)
        return stalled if part == "stall" else costs.waiting - stalled
    slow = np.fmin(what_if.graph.host.slow, costs.busy)
    if part == "allocation":
        return np.fmin(what_if.graph.host.allocating, costs.busy - slow)
    if part == "sync":
        host = what_if.graph.host
        own = synchronizing_more(what_if)
        # A rank that waits longer in as many synchronizations waits for another rank, through its device.
        waits = syncs(what_if) & costs.blocking & any_of(host.process, *own)
        return np.where(waits, np.maximum(np.diff(host.time, prepend=0.0) - costs.busy - costs.waiting, 0.0), 0.0)
    return slow if part == "operators" else costs.busy - slow


def common(what_if: WhatIf, costs: Costs, part: Part) -> NDArray[np.float64]:
    """float64[n or m], ns: what of it every rank needs; what one needs more of makes it a straggler."""
    return amount(what_if, costs, part) - _above(what_if, costs, part, each_step=False)


def levelled(what_if: WhatIf, costs: Costs, parts: Iterable[Part], *, each_step: bool = False) -> Costs:
    """Every rank needs no more for these parts of the step than its peers do.

    A rank's part is brought to the lower median of all ranks' parts (with an even number of ranks the smaller of the
    two in the middle, so that two late ranks of four count as late). With `each_step`, every step of every rank is
    brought to the lower median over all of them, which takes a late rank out that is another one each step. What a rank
    does more of is taken from where in the step it does it (`level_between_ranks`).
    """
    chosen = set(parts)
    if "compute" in chosen:
        # Level are the ranks in what they compute, not in how they disturb each other by waiting.
        costs = replace(costs, duration=what_if.baseline.relieved_of_waiting(costs.duration))
    if "sync" in chosen:
        costs = _without_own_syncs(what_if, costs)
        chosen.discard("sync")
    above = {part: _above(what_if, costs, part, each_step=each_step) for part in PARTS if part in chosen}
    none = np.zeros(1)
    return replace(
        costs,
        waiting=costs.waiting - above.get("input", none) - above.get("stall", none),
        busy=costs.busy - above.get("operators", none) - above.get("launch", none),
        duration=costs.duration - above.get("compute", none) - above.get("copy", none),
    )


def syncs(what_if: WhatIf) -> NDArray[np.bool_]:
    """bool[n]: the host nodes that wait for the device in a synchronization which is no part of an exchange."""
    host = what_if.graph.host
    found: NDArray[np.bool_] = (host.block == Block.SYNC) & (host.block_on != NONE) & ~what_if.exchanged.blocks
    return found


def releases(what_if: WhatIf) -> NDArray[np.bool_]:
    """bool[n]: the host nodes that give memory back to the driver, and wait for the device to do so."""
    found: NDArray[np.bool_] = what_if.graph.host.block == Block.RELEASE
    return found


def synchronizing_more(what_if: WhatIf) -> list[int]:
    """The processes whose hosts synchronize with the device more often in a step than most of their peers' do."""
    return waiting_more(what_if, syncs(what_if))


def waiting_more(what_if: WhatIf, waits: NDArray[np.bool_]) -> list[int]:
    """The processes that have more of these host nodes than most of their peers have."""
    process = what_if.graph.host.process
    count = {one: int(waits[process == one].sum()) for one in what_if.graph.ranks}
    usual = float(lower_median(np.array(list(count.values()), np.float64)))
    return [process for process, times in count.items() if times > 0 and times >= OFTEN * usual]


def without_waiting(what_if: WhatIf, costs: Costs, nodes: NDArray[np.bool_]) -> Costs:
    """These host nodes do not wait for the device, and nothing is copied to the host to be waited for."""
    host, device = what_if.graph.host, what_if.graph.device
    wanted = np.zeros(len(device.start), np.bool_)
    wanted[host.block_on[nodes & (host.block_on != NONE)]] = True
    wanted &= device.host_copy
    return replace(
        costs,
        blocking=costs.blocking & ~nodes,
        duration=np.where(wanted, 0.0, costs.duration),
        gap=np.where(wanted, 0.0, costs.gap),
    )


def _without_own_syncs(what_if: WhatIf, costs: Costs) -> Costs:
    """No rank synchronizes with its device, or releases memory, where most of its peers do not."""
    process = what_if.graph.host.process
    for waits in (syncs(what_if), releases(what_if)):
        own = waiting_more(what_if, waits)
        if own:
            costs = without_waiting(what_if, costs, waits & any_of(process, *own))
    return costs


def excess(what_if: WhatIf, part: Part) -> Excess:
    """By how much each rank's part of the step is above the lower median of the ranks'."""
    costs = what_if.corrected
    if part == "compute":
        costs = replace(costs, duration=what_if.baseline.relieved(costs.duration))
    process, step = _where(what_if, part)
    of = amount(what_if, costs, part)
    if part == "input" and what_if.later_input_ns:
        above = _above_as_recorded(what_if, of, part, each_step=False)
        of = of - above + _as_timed(what_if, above)
    return above_peers(what_if.graph, part, of, process, step)


def _where(what_if: WhatIf, part: Part) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(process, step) of what the part is of."""
    if part in _ON_DEVICE:
        return what_if.process_of_op, what_if.graph.device.step
    return what_if.graph.host.process, what_if.graph.host.step


def _above(what_if: WhatIf, costs: Costs, part: Part, *, each_step: bool) -> NDArray[np.float64]:
    """What of each amount is above the level of the processes, or of all their steps."""
    above = _above_as_recorded(what_if, amount(what_if, costs, part), part, each_step=each_step)
    return _as_timed(what_if, above) if part == "input" else above


def _above_as_recorded(what_if: WhatIf, of: NDArray[np.float64], part: Part, *, each_step: bool) -> NDArray[np.float64]:
    if not of.any():
        return of
    process, step = _where(what_if, part)
    segment = what_if.segments[1 if part in _ON_DEVICE else 0]
    steps = what_if.graph.steps if each_step else 1
    cell = process * steps + np.minimum(step, steps - 1) if each_step else process
    used = np.concatenate([np.arange(q * steps, (q + 1) * steps) for q in what_if.graph.ranks])
    return above_level(of, cell, segment, used)


def _as_timed(what_if: WhatIf, above: NDArray[np.float64]) -> NDArray[np.float64]:
    """No more of it on a process than the timed steps, of which there are many, have it wait longer than its peers."""
    process, steps = what_if.graph.host.process, what_if.graph.steps
    share = np.ones(int(process.max(initial=0)) + 1)
    for one, most in what_if.later_input_ns.items():
        share[one] = min(1.0, most * steps / max(float(above[process == one].sum()), 1.0))
    return above * share[process]
