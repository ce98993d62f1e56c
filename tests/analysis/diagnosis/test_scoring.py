"""Test how findings that save the same time share the savings, in toy jobs whose step time is a formula.

A toy job's scenario is the set of removed causes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpudiag.analysis.diagnosis.rules.rule import Proposal
from gpudiag.analysis.diagnosis.scoring import ScoredFinding, in_order, savings_ms, score
from gpudiag.model.analysis import Finding, Validity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpudiag.analysis.diagnosis.rules.rule import Edit, Kind

Gone = frozenset[str]


class Toy:
    """Replace the what-if simulation: `step` returns the step time in ms without the removed causes."""

    corrected: Gone = frozenset()

    def __init__(self, step: Callable[[Gone], float]) -> None:
        self.step = step
        self.now_ms = step(self.corrected)

    def savings_ms(self, many: Iterable[Gone], base: Gone = corrected) -> list[float]:
        return [max(self.step(base) - self.step(costs), 0.0) for costs in many]

    def saving_ms(self, costs: Gone, base: Gone = corrected) -> float:
        return self.savings_ms([costs], base)[0]


class Doubting:
    """Doubt findings by code, and record how many edits were applied before each finding was checked."""

    def __init__(self, *codes: str) -> None:
        self.codes = codes
        self.before: dict[str, int] = {}

    def doubt(self, finding: Finding, _gain_ms: float, before: list[Edit], _edit: Edit) -> str | None:
        self.before[finding.code] = len(before)
        return "chance" if finding.code in self.codes else None


def summed(least: float = 0.0, **parts: float) -> Any:
    """Return a job whose host runs `parts` (name → ms) in sequence, while its device needs at least `least` ms."""
    return Toy(lambda gone: max(sum(ms for part, ms in parts.items() if part not in gone), least))


def without(*parts: str) -> Any:
    return lambda _, costs: costs | set(parts)


def cause(code: str, kind: Kind = "waste", *parts: str, beyond: str = "", **fields: Any) -> Proposal:
    """Return a proposal that removes `parts` (by default the part named like its code).

    `beyond` is the part whose cost launch overhead may explain. `fields` replaces fields of the finding.
    """
    return Proposal(
        edit=without(*(parts or (code,))),
        describe=lambda gain, percent: Finding(
            **{
                "code": code,
                "severity": "info",
                "recoverable_ms_per_step": gain,
                "recoverable_percent": percent,
                "evidence": {"of": code},
                **fields,
            }
        ),
        beyond=without(beyond) if beyond else None,
        kind=kind,
    )


def scored(job: Any, causes: list[Proposal], doubting: Any = None) -> tuple[list[ScoredFinding], list[Validity]]:
    judge: Any = doubting or Doubting()
    return score(job, causes, judge)


LOADER, LAUNCH, COMMUNICATION = cause("loader"), cause("launch", "launching"), cause("exchange", "communication")


@pytest.mark.parametrize(("device", "launching"), [(31, 0), (15, 0), (10, 5), (0, 15)])
def test_launch_overhead_is_scored_without_the_waste(device: float, launching: float) -> None:
    assert savings_ms(summed(device, loader=30, launch=15), [LOADER, LAUNCH]) == [min(30, 45 - device), launching]


def test_launch_overhead_is_scored_without_communication() -> None:
    assert savings_ms(summed(15, launch=20, exchange=10), [LAUNCH, COMMUNICATION]) == [5, 10]
    assert savings_ms(summed(15, launch=20, exchange=10, loader=9), [COMMUNICATION, LAUNCH, LOADER]) == [10, 5, 9]


@pytest.mark.parametrize("kind", ["waste", "communication"])
@pytest.mark.parametrize(("small", "launching"), [(1.0, 14.0), (0.9, 15.0)])
def test_launch_overhead_is_scored_with_causes_too_small_to_report(small: float, launching: float, kind: Kind) -> None:
    job = summed(85, other=80 - small, launch=20, small=small)
    assert savings_ms(job, [cause("small", kind), LAUNCH]) == pytest.approx([small, launching])


def test_launch_overhead_never_saves_more_than_in_the_recorded_job() -> None:
    """Without communication, launch overhead would save more; only its savings with communication are reported."""
    job: Any = Toy(
        lambda gone: 100.0 - 10 * ("launch" in gone) - (50 * ("exchange" in gone)) * (1 + ("launch" in gone))
    )
    assert savings_ms(job, [LAUNCH, COMMUNICATION]) == [10, 50]


@pytest.mark.parametrize(
    ("launch", "wire", "communication"), [(20, 0, 0), (19.9, 0, 10), (30, 1.0, 11.0), (30, 0.9, 0), (0, 0, 10)]
)
def test_communication_calls_count_as_launch_overhead_if_that_saves_twice_as_much(
    launch: float, wire: float, communication: float
) -> None:
    job = summed(other=90 - launch - wire, launch=launch, calls=10, wire=wire)
    whole = cause("exchange", "communication", "calls", "wire", beyond="calls")
    assert savings_ms(job, [whole, LAUNCH]) == pytest.approx([communication, launch])


def test_finding_reports_the_step_time_before_and_after_the_fix() -> None:
    job = summed(10, loader=30, launch=15, tiny=0.1)
    found, doubts = scored(job, [LAUNCH, cause("tiny"), LOADER])
    assert {result.finding.code: result.savings_ms for result in found} == pytest.approx({"loader": 30, "launch": 5.1})
    assert found[0].finding.code == "loader"
    assert found[0].finding.evidence == {
        "of": "loader", "step_ms_now": pytest.approx(45.1), "step_ms_if_fixed": pytest.approx(15.1)
    }  # fmt: skip
    assert found[0].finding.recoverable_percent == pytest.approx(100 * 30 / 45.1)
    assert doubts == []


def test_reported_step_time_is_longer_if_more_is_recoverable_than_simulated() -> None:
    (found,), _ = scored(summed(loader=10, other=90), [cause("loader", recoverable_ms_per_step=12.0)])
    assert found.finding.evidence["step_ms_now"] == 102
    (found,), _ = scored(summed(loader=10, other=90), [cause("loader", recoverable_ms_per_step=None)])
    assert found.finding.evidence["step_ms_now"] == 100


def test_launch_overhead_is_scored_after_significant_waste() -> None:
    job = summed(10, loader=30, stall=20, launch=15)
    doubting = Doubting("stall")
    found, doubts = scored(job, [cause("stall"), LOADER, LAUNCH, COMMUNICATION], doubting)
    assert doubting.before == {"loader": 0, "stall": 0, "launch": 1}
    assert [result.finding.code for result in found] == ["loader", "launch"]
    assert [(doubt.code, doubt.message) for doubt in doubts] == [("cannot-tell:stall", "chance")]
    # The stall may be chance, so it does not reduce the savings of launch overhead.
    assert found[1].savings_ms == 15


def test_insignificant_launch_overhead_is_reported_as_doubt() -> None:
    found, doubts = scored(summed(loader=30, launch=15), [LOADER, LAUNCH], Doubting("launch"))
    assert [result.finding.code for result in found] == ["loader"]
    assert [doubt.code for doubt in doubts] == ["cannot-tell:launch"]


@pytest.mark.parametrize(
    ("a", "b", "device", "instead"),
    [
        (20, 20, 80, True),
        (20, 20, 78.1, True),
        (20, 20, 78, False),  # removing both saves 2 % more than removing either
        (20, 10, 79, False),  # fixing the first finding is enough, and fixing the second is not
        (5, 5, 95, True),
        (4.9, 4.9, 95.1, False),  # neither finding is worth fixing
    ],
)
def test_interchangeable_waste_findings_name_each_other(a: float, b: float, device: float, *, instead: bool) -> None:
    job = summed(device, other=100 - a - b, a=a, b=b)
    found, _ = scored(job, [cause("a"), cause("b")])
    assert {result.finding.code: result.finding.instead for result in found} == (
        {"a": ("b",), "b": ("a",)} if instead else {"a": (), "b": ()}
    )


def test_each_of_three_interchangeable_findings_names_the_other_two() -> None:
    job = summed(80, other=30, a=20, b=20, c=20, launch=10)
    found, _ = scored(job, [cause("a"), cause("b"), cause("c"), LAUNCH])
    assert {result.finding.code: result.finding.instead for result in found} == {
        "a": ("b", "c"), "b": ("a", "c"), "c": ("a", "b")
    }  # fmt: skip


@pytest.mark.parametrize(
    ("waste", "fields", "order"),
    [
        (10.0, {}, ["waste", "launch"]),
        (9.9, {}, ["launch", "waste"]),  # waste saves less than a quarter of launch overhead
        (10.0, {"recoverable_percent": 4.9}, ["launch", "waste"]),  # waste below 5 % of the step is not worth fixing
        (10.0, {"recoverable_percent": None}, ["launch", "waste"]),
        (10.0, {"recoverable_percent": 5.0}, ["waste", "launch"]),
        (39.0, {"cause": "launch"}, ["launch", "waste"]),
        (39.2, {"cause": "launch"}, ["waste", "launch"]),
    ],
)
def test_waste_worth_fixing_precedes_launch_overhead(waste: float, fields: dict[str, Any], order: list[str]) -> None:
    job = summed(other=100 - 40 - waste, launch=40, waste=waste)
    found, _ = scored(job, [LAUNCH, cause("waste", **fields)])
    assert [result.finding.code for result in found] == order
    assert [scored.finding.code for scored in in_order(found[::-1])] == order


def test_waste_precedes_similar_communication_and_launch_overhead() -> None:
    job = summed(waste=20, other=100, launch=60, exchange=20.1)
    found, _ = scored(job, [LAUNCH, COMMUNICATION, cause("waste")])
    assert [result.finding.code for result in found] == ["waste", "launch", "exchange"]
