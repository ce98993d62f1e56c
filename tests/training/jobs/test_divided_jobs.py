"""Test that each fault of a divided job adds work to the expected ranks only, and only while the fault is on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from gpudiag.training.jobs.faults.parallel_layouts import selftest_layout, slow_ranks
from gpudiag.training.jobs.parallel.artificial import artificial_work
from tests.training.strategies.processes import Job

PROGRAM = Path(__file__).with_name("switch_divided_jobs.py")
RANKS = 4


@pytest.fixture(scope="module")
def answers() -> list[dict[str, Any]]:
    with Job(PROGRAM, RANKS) as job:
        return [job.answer(rank) for rank in range(RANKS)]


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(
    ("kind", "slow", "more"),
    # All tokens go to the hot expert, instead of a quarter of the tokens. Experts have half of a layer's work.
    [("long-sequences", 2, 2.0), ("hot-expert", 2, 0.5 + 0.5 * 4)],
)
def test_fault_adds_work_on_slow_rank(answers: list[dict[str, Any]], kind: str, slow: int, more: float) -> None:
    assert slow_ranks(kind, RANKS) == (slow,)
    usual = answers[0]["pipeline"][0]
    for rank, answer in enumerate(answers):
        off, on, rest = answer[kind]
        assert off == pytest.approx(usual)
        assert rest == pytest.approx(usual)
        if rank == slow:
            assert on == pytest.approx(more * usual, rel=0.02)
        else:
            assert on <= off * 1.001
    assert answers[0][f"{kind} layout"] is not None


@pytest.mark.xdist_group("processes")
def test_uneven_stages_have_the_work_of_even_ones(answers: list[dict[str, Any]]) -> None:
    off, on = (sum(answer["uneven-stages"][at] for answer in answers) for at in (0, 1))
    assert on == pytest.approx(off)
    assert [answer["uneven-stages"][1] for answer in answers] == pytest.approx(
        [answers[0]["uneven-stages"][1] * times for times in (1, 1, 2, 2)]
    )


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("kind", ["pipeline", "tensor-and-data-parallel"])
def test_divided_job_has_the_work_of_the_job_alone(answers: list[dict[str, Any]], kind: str) -> None:
    for answer in answers:
        off, on, rest = answer[kind]
        assert off == pytest.approx(on)
        assert rest == pytest.approx(on)


def test_artificial_work_waits_twice_as_long_in_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    x = torch.ones(3, requires_grad=True)
    y = artificial_work(x, 8.0)
    assert waits == [0.008]
    (2 * y).sum().backward()  # type: ignore[no-untyped-call]  # torch's own
    assert waits == [0.008, 0.016]
    assert x.grad is not None
    assert (y.tolist(), x.grad.tolist()) == ([1.0] * 3, [2.0] * 3)


@pytest.mark.parametrize("kind", ["pipeline", "tensor-and-data-parallel", "uneven-stages", "long-sequences"])
@pytest.mark.parametrize("processes", [2, 4, 6, 8])
def test_layout_uses_all_processes(kind: str, processes: int) -> None:
    assert selftest_layout(kind, processes).processes == processes


def test_all_replicas_of_a_slow_stage_are_slow() -> None:
    assert selftest_layout("uneven-stages", 8).pp == 4
    assert slow_ranks("uneven-stages", 8) == (4, 5)
    assert slow_ranks("uneven-stages", 2) == (1,)
    assert slow_ranks("pipeline", 8) == ()
