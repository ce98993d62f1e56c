"""Predictions on recorded machines: what must hold for any model, and what physics says of these."""

from __future__ import annotations

import itertools

import pytest

from gpudiag.model.prediction import Candidate, Compute, Gradients, Prediction
from gpudiag.prediction.finalists import finalists_of
from gpudiag.prediction.predict import PREDICTED, predict
from tests.machines import machine

COMPUTE = Compute(forward_ms=6.0, backward_ms=12.0, update_ms=1.5, step_ms=19.5)
#: Sizes of VGG-16's kind: nearly all bytes in three tensors that are ready first.
LARGE = Gradients(
    sizes=(16_384_000, 67_108_864, 411_041_792, *[4_000_000] * 13), compute=COMPUTE, batch_size=64, input_bytes=1 << 20
)
EVERY = tuple(Candidate(strategy=name) for name in PREDICTED)
MACHINES = ("h200x4", "7gforce", "7gforce-v2", "az-2x-m60", "az-4x-m60", "dgx-1", "patrick-4x")


def _by_name(found: tuple[Prediction, ...]) -> dict[str, Prediction]:
    return {one.candidate.label: one for one in found}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("p2p", [True, False])
def test_nothing_beats_no_exchange(name: str, p2p: bool) -> None:
    facts = machine(name)
    for devices in range(1, len(facts.gpus) + 1):
        found = predict(facts, LARGE, EVERY, devices, p2p=p2p)
        assert {one.candidate.strategy for one in found} == set(PREDICTED)
        for one in found:
            assert one.step_ms is not None
            assert one.step_ms >= COMPUTE.step_ms
            assert one.reason
        assert [one.exposed_ms for one in found] == sorted(one.exposed_ms for one in found)


@pytest.mark.parametrize(
    ("name", "strategy"), list(itertools.product(MACHINES, ("nccl", "gloo", "cpu-reduce", "ps-gpu")))
)
def test_twice_the_bytes_never_cost_less(name: str, strategy: str) -> None:
    facts = machine(name)
    double = Gradients(sizes=tuple(2 * size for size in LARGE.sizes), compute=COMPUTE)
    once, twice = (predict(facts, model, [Candidate(strategy=strategy)], 2)[0] for model in (LARGE, double))
    assert twice.exchange_ms >= once.exchange_ms
    assert twice.exposed_ms >= once.exposed_ms


def test_without_peer_access_the_host_wins_over_the_ring() -> None:
    candidates = [*EVERY, Candidate(strategy="cpu-reduce", compress="bf16")]
    near, far = (_by_name(predict(machine("h200x4"), LARGE, candidates, 4, p2p=p2p)) for p2p in (True, False))
    assert near["nccl"].exposed_ms < near["cpu-reduce"].exposed_ms
    assert far["cpu-reduce"].exposed_ms < far["nccl"].exposed_ms
    assert far["cpu-reduce --compress bf16"].exposed_ms < far["cpu-reduce"].exposed_ms
    assert "no peer access" in far["nccl"].reason


def test_an_unknown_strategy_and_one_that_cannot_run_come_last() -> None:
    found = predict(
        machine("h200x4"), LARGE, [Candidate(strategy="smoke-signals"), *EVERY], 4, cannot={"fsdp": "it is Sunday"}
    )
    assert {one.candidate.strategy for one in found[-2:]} == {"smoke-signals", "fsdp"}
    assert {one.cannot for one in found[-2:]} == {"gpudiag has no model of its cost", "it is Sunday"}


def test_finalists_hold_the_best_those_near_and_the_usual() -> None:
    found = predict(machine("h200x4"), LARGE, EVERY, 4, p2p=False)
    chosen = finalists_of(found, 2)
    assert chosen[0] == next(one.candidate for one in found if one.candidate.strategy != "independent")
    assert Candidate(strategy="nccl") in chosen
    assert all(candidate.strategy != "independent" for candidate in chosen)


def test_what_was_not_measured_is_said() -> None:
    (found,) = predict(machine("dgx-1"), LARGE, [Candidate(strategy="ps-cpu")], 8)
    assert "host link" in found.assumed
