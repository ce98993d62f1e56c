"""Test the predictor against published measurements of other machines."""

from __future__ import annotations

import statistics

import pytest

from gpudiag.model.benchmarks.prediction import Candidate
from gpudiag.training.strategies.tensorflow1 import FRAMEWORK
from tests.prediction import published_systems as published


@pytest.fixture(scope="module")
def groups() -> list[published.Group]:
    return published.groups()


@pytest.mark.long
def test_most_winners_are_predicted(groups: list[published.Group]) -> None:
    """docs/predictions.md lists every miss with its reason."""
    assert len(groups) == 69
    assert sum(group.right for group in groups) >= 0.8 * len(groups)


def test_different_strategies_are_distinguished(groups: list[published.Group]) -> None:
    """Groups that ran one strategy several times (24 of 69) are not counted."""
    apart = [group for group in groups if not group.alike]
    assert len(apart) == 45
    assert sum(group.right for group in apart) >= 0.85 * len(apart)
    assert max(group.regret_percent for group in apart) < 10
    assert statistics.mean(group.regret_percent for group in apart) < 2


@pytest.mark.parametrize(
    ("setting", "winner"),
    [
        (("7gforce", "alexnet", "2", "0,1"), "parameter-server-gpu"),
        (("7gforce", "alexnet", "2", "0,5"), "parameter-server-gpu"),
        (("7gforce", "inception3", "2", ""), "parameter-server-gpu"),
        (("7gforce", "inception3", "4", ""), "parameter-server-cpu"),
    ],
)
def test_winner_on_slow_links_and_hubs_is_predicted(
    groups: list[published.Group], setting: tuple[str, ...], winner: str
) -> None:
    keys = ("machine", "model", "gpus", "gpu_ids")
    assert next(group.said for group in groups if tuple(group.row[key] for key in keys) == setting) == winner


def test_a_tie_is_reported(groups: list[published.Group]) -> None:
    """The links of two GPUs have 5 GB/s. The two fastest strategies, at 670 ms per step, differ by 0.1 standard
    deviations."""
    (found,) = [g for g in groups if (g.row["machine"], g.row["model"]) == ("az-2x-m60", "inception3")]
    assert found.said == found.truth == "tie"


@pytest.mark.long
def test_predicted_step_times_are_near_published_ones() -> None:
    errors = [abs(predicted / measured - 1) for _, predicted, measured in published.targets()]
    assert len(errors) > 150
    assert statistics.median(errors) < 0.08
    assert sum(error <= 0.15 for error in errors) / len(errors) >= 0.8


def _alexnet(gpus: str, strategy: str) -> float:
    row = next(r for r in published.rows("cost_model_targets.csv") if r["gpu_ids"] == "0,1" and r["nccl"] == "True")
    one = published.run_of({**row, "gpu_ids": gpus})
    return published.predicted(one, 372.0, [Candidate(strategy=strategy, framework=FRAMEWORK)])[0].exposed_ms


def test_ring_within_a_switch_is_faster_than_across_switches() -> None:
    """NCCL gets half of the two-way bandwidth: 0.82 GB/s within a switch, and 0.66 GB/s across two switches."""
    assert _alexnet("0,1", "replicated-nccl") == pytest.approx(302, rel=0.02)
    assert _alexnet("0,5", "replicated-nccl") == pytest.approx(375, rel=0.02)


def test_host_replicas_are_summed_and_horovod_overlaps_backward() -> None:
    """The published steps are 484 ms for replicas without NCCL on this pair, and 453 ms for parameters on the CPU."""
    assert _alexnet("0,1", "replicated") == pytest.approx(484, rel=0.15)
    assert _alexnet("0,1", "parameter-server-cpu") == pytest.approx(453, rel=0.15)
    assert 0 < _alexnet("0,1", "horovod") < _alexnet("0,1", "replicated-nccl")
