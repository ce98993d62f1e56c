"""Test the confidence of findings, in jobs whose steps are a few numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpudiag.analysis.diagnosis.rules.rule import Proposal
from gpudiag.analysis.diagnosis.scoring import ScoredFinding, grade, survival
from gpudiag.model.analysis import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpudiag.analysis.diagnosis.rules.rule import Kind

Gone = frozenset[str]


class Steps:
    """Fake the what-if simulation. A step takes the sum of the `costs` in ms of all causes that are not removed.

    Recorded steps take longer by `profiler` ms. If `timed`, there are unprofiled steps. `dearer` has the simulations at
    other overheads: ns per event → simulation; all other overheads change nothing.
    """

    corrected: Gone = frozenset()
    per_event_ns = 1000.0

    def __init__(self, costs: dict[str, Sequence[float]], profiler: float = 0.0, *, timed: bool = False) -> None:
        self.costs = {name: np.array(ms, np.float64) for name, ms in costs.items()}
        self.graph = SimpleNamespace(steps=len(next(iter(self.costs.values()))))
        self.corrected_ms = self.now_ms = sum(float(ms.mean()) for ms in self.costs.values())
        self.simulated_ms = self.corrected_ms + profiler
        self.unprofiled_ms = self.corrected_ms if timed else None
        self.dearer: dict[float, Any] = {}

    def steps_ms(self, many: Iterable[Gone]) -> list[Any]:
        return [sum(ms for name, ms in self.costs.items() if name not in gone) + 0.0 for gone in many]

    def savings_ms(self, many: Iterable[Gone], base: Gone = corrected) -> list[float]:
        before, *after = self.steps_ms([base, *many])
        return [max(float(np.mean(before - costs)), 0.0) for costs in after]

    def saving_ms(self, costs: Gone, base: Gone = corrected) -> float:
        return self.savings_ms([costs], base)[0]

    def at_cost(self, per_event_ns: float) -> Any:
        return self.dearer.get(round(per_event_ns), self)


def scored_finding(code: str, gain_ms: float, kind: Kind = "waste", instead: tuple[str, ...] = ()) -> ScoredFinding:
    finding = Finding(code=code, severity="info", instead=instead)
    proposal = Proposal(edit=lambda _, costs: costs | {code}, describe=lambda *_: finding, kind=kind)  # type: ignore[operator]  # costs are names here
    return ScoredFinding(proposal=proposal, finding=finding, savings_ms=gain_ms)


def shares(job: Any, *findings: ScoredFinding) -> list[float]:
    return survival(job, findings)


def test_no_findings_have_no_confidence() -> None:
    assert shares(Steps({"rest": [1, 1]})) == []


def test_constant_cost_survives_every_variation() -> None:
    assert shares(Steps({"loader": [10, 10, 10], "rest": [90, 90, 90]}), scored_finding("loader", 10.0)) == [1.0]


def test_single_step_gives_no_confidence() -> None:
    assert shares(Steps({"loader": [10], "rest": [90]}), scored_finding("loader", 10.0)) == [0.0]
    assert shares(Steps({"loader": [10], "rest": [90]}, profiler=10), scored_finding("loader", 10.0)) == [0.0]
    assert shares(Steps({"loader": [10, 10], "rest": [90, 90]}), scored_finding("loader", 10.0)) == [1.0]
    assert shares(Steps({"loader": [0.6, 0.6], "rest": [0.3, 0.3]}), scored_finding("loader", 0.6)) == [1.0]


@pytest.mark.parametrize(("odd", "share"), [(26.6, 1.0), (26.7, 0.8), (0, 1.0)])
def test_cost_of_a_single_step_lowers_confidence(odd: float, share: float) -> None:
    """The loader costs 10 ms in each of four steps and 26.7 ms in the fifth.

    Without the fifth step the mean falls by a quarter.
    """
    job = Steps({"loader": [10, 10, 10, 10, odd], "rest": [90] * 5})
    assert shares(job, scored_finding("loader", (40 + odd) / 5)) == pytest.approx([share])


def test_variations_are_scaled_to_the_reported_savings() -> None:
    """If unprofiled steps are shorter than simulated ones, reported savings are smaller than simulated savings."""
    job = Steps({"loader": [10, 10, 10, 10], "rest": [90] * 4})
    assert shares(job, scored_finding("loader", 5.0)) == [1.0]


def test_launch_overhead_is_varied_without_waste() -> None:
    class Hidden(Steps):
        """Launching costs 10 ms in each step if the loader is removed; otherwise 30 ms in the last step only."""

        def steps_ms(self, many: Iterable[Gone]) -> list[Any]:
            full, even = np.array([100.0, 100, 100]), np.array([10.0, 10, 10])
            uneven = np.array([0.0, 0, 30])
            return [
                full - 20 * ("loader" in gone) - ((even if "loader" in gone else uneven) if "launch" in gone else 0.0)
                for gone in many
            ]

    job = Hidden({"rest": [100, 100, 100]})
    assert shares(job, scored_finding("loader", 20.0), scored_finding("launch", 10.0, "launching")) == [1.0, 1.0]
    assert shares(job, scored_finding("loader", 20.0), scored_finding("launch", 10.0, "communication")) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("second", "instead", "share"),
    [(9.79, (), 1.0), (9.81, (), 0.8), (9.81, ("loader",), 1.0)],
)
def test_reversed_tie_counts_as_a_variation(second: float, instead: tuple[str, ...], share: float) -> None:
    """If two findings tie, their reversed order is a fifth variation, in which the first finding loses its place."""
    job = Steps({"loader": [10] * 4, "stall": [second] * 4, "rest": [80] * 4})
    assert shares(
        job, scored_finding("loader", 10.0), scored_finding("stall", second, instead=instead)
    ) == pytest.approx([share, 1.0])


@pytest.mark.parametrize(("dearer", "share"), [(12.5, 1.0), (12.6, 5 / 6), (7.5, 1.0), (7.4, 5 / 6)])
def test_profiler_overhead_is_varied_without_unprofiled_steps(dearer: float, share: float) -> None:
    """Four variations each omit a step. Two further variations have an overhead of 700 and 1300 instead of 1000 ns."""
    for cost in (700, 1300):
        job = Steps({"loader": [10.0] * 4, "rest": [90.0] * 4}, profiler=10)
        job.dearer[cost] = Steps({"loader": [dearer] * 4, "rest": [90.0] * 4})
        assert shares(job, scored_finding("loader", 10.0)) == pytest.approx([share])


@pytest.mark.parametrize(("profiler", "timed", "share"), [(2.1, False, 4 / 6), (2.0, False, 1.0), (9.0, True, 1.0)])
def test_profiler_overhead_is_not_varied_if_irrelevant(profiler: float, share: float, *, timed: bool) -> None:
    job = Steps({"loader": [10.0] * 4, "rest": [90.0] * 4}, profiler=profiler, timed=timed)
    job.dearer = dict.fromkeys((700, 1300), Steps({"loader": [20.0] * 4, "rest": [90.0] * 4}))
    assert shares(job, scored_finding("loader", 10.0)) == pytest.approx([share])


@pytest.mark.parametrize(
    ("share", "word"), [(1.0, "high"), (0.95, "high"), (0.94, "medium"), (0.6, "medium"), (0.59, "low")]
)
def test_share_becomes_a_confidence_grade(share: float, word: str) -> None:
    assert grade(share) == word
