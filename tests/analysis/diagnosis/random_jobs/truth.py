"""Determine the cost of each cause by simulating the job without the cause, independently of the diagnosis."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import cache

import msgspec

from tests.analysis.diagnosis.random_jobs.recipe import Fault, Recipe


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A cause, with the finding that should report it.

    Attributes:
        name: the fault, or the cost that every job has.
        code: the code of the finding.
        causes: the cause of the finding must contain one of these texts, if there are any.
        ranks: the ranks of the finding; None if they are not compared.
        late: for jitter, the ranks that were late in an analysed step; a finding may name these ranks too.
        gain_ms: the savings of removing only this cause.
        after_waste_ms: the savings after all faults and input waits are removed; for a fault, the savings of removing
            it and all input waits after the other faults.
        waste: whether the cause can be removed entirely.
        finding: whether a finding must report the cause; else it is part of another cause.
    """

    name: str
    code: str
    causes: tuple[str, ...] = ()
    ranks: tuple[int, ...] | None = None
    late: tuple[int, ...] | None = None
    gain_ms: float
    after_waste_ms: float
    waste: bool
    finding: bool = True

    def is_named(self, cause: str | None) -> bool:
        """Return whether a finding's `cause`, in lower case, contains an accepted text; True if there are none."""
        return not self.causes or any(text in (cause or "").lower() for text in self.causes)


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """The job's unprofiled step in ms, and its causes, the most expensive cause first."""

    step_ms: float
    causes: tuple[Cause, ...]

    def share(self, cause: Cause) -> float:
        """Return the larger of `gain_ms` and `after_waste_ms` as a share of the step."""
        return max(cause.gain_ms, cause.after_waste_ms) / self.step_ms


def _all(_: Fault, recipe: Recipe) -> tuple[int, ...]:
    return tuple(range(recipe.ranks))


def _one(fault: Fault, recipe: Recipe) -> tuple[int, ...]:
    return (fault.rank,) if fault.rank is not None else _all(fault, recipe)


def _late(fault: Fault, recipe: Recipe) -> tuple[int, ...]:
    return tuple(sorted({rank for rank, step, _ in fault.sometimes if 0 < step < recipe.steps - 1}))


#: Fault → (code of its finding, accepted texts of the finding's cause, function that returns the finding's ranks).
_EXPECTED: dict[str, tuple[str, tuple[str, ...], Callable[[Fault, Recipe], tuple[int, ...]]]] = {
    "loader": ("input-bound", ("loader",), _all),
    "loader-unmarked": ("input-bound", (), _all),
    "stall": ("host-stall", (), _all),
    "operator": ("launch-bound", ("slow operators",), _all),
    "loader-one": ("straggler", ("input",), _one),
    "loader-unmarked-one": ("straggler", ("input",), _one),
    "stall-one": ("straggler", ("stall",), _one),
    "operator-one": ("straggler", ("stall", "launch", "operator"), _one),
    "compute-one": ("straggler", ("compute",), _one),
    "launch-one": ("straggler", ("launch",), _one),
    "jitter": ("straggler", (), _all),
    "host-one": ("straggler", ("launch", "host"), _one),
    "stall-sometimes": ("straggler", ("stall",), _one),
    "collection": ("straggler", ("stall", "garbage"), _one),
    "pageable": ("slow-copy", ("pageable",), _all),
    "copy": ("slow-copy", ("not hidden",), _all),
    "small-copies": ("slow-copy", ("pageable", "small"), _all),
    "item": ("host-sync", ("item",), _all),
    "allocation": ("memory-allocation", ("cudamalloc", "cudafree"), _all),
    "allocation-one": ("straggler", ("launch", "sync"), _one),
}


def truth_of(recipe: Recipe) -> Truth:
    """Simulate the job with all causes, and without each cause; return the cost of each cause in ms per step."""

    @cache
    def played(without: frozenset[str]) -> float:
        return statistics.fmean(recipe.job(without, recorded=False).step_times_ms())

    def step_ms(*without: str) -> float:
        """Return the mean unprofiled step time in ms without the named causes."""
        return played(frozenset(without))

    now = step_ms()
    waste = [fault.kind for fault in recipe.faults]
    bare = step_ms(*waste, "input")  # without faults and input
    causes = []
    for fault in recipe.faults:
        code, texts, ranks = _EXPECTED[fault.kind]
        # The usual fetch and the late loader are one wait, so both are removed.
        taken = ("input", fault.kind) if code == "input-bound" else (fault.kind,)
        others = [kind for kind in waste if kind != fault.kind]
        causes.append(
            Cause(
                name=fault.kind,
                code=code,
                causes=texts,
                ranks=ranks(fault, recipe),
                late=_late(fault, recipe) if fault.kind == "jitter" else None,
                gain_ms=now - step_ms(*taken),
                after_waste_ms=step_ms(*others) - bare,
                waste=True,
            )
        )
    # (name, code of the finding, whether it is waste) of costs that are no faults.
    costs = [("launching", "launch-bound", False), ("exchange", "communication-bound", False)]
    if not any(cause.code == "input-bound" for cause in causes):
        costs.append(("input", "input-bound", True))
    costs.append(("scatter", "straggler", True))
    if {"pageable", "small-copies"} & set(waste):
        # Copies that do not block the host still occupy the device.
        costs.append(("blocking", "host-sync", True))
    for name, code, is_waste in costs:
        alone, after = now - step_ms(name), bare - step_ms(*waste, "input", name)
        # Blocking is a part of what slow copies cost, so no finding needs to report it.
        due = name != "blocking"
        causes.append(Cause(name=name, code=code, gain_ms=alone, after_waste_ms=after, waste=is_waste, finding=due))
    causes.sort(key=lambda cause: -cause.gain_ms)
    return Truth(step_ms=now, causes=tuple(causes))
