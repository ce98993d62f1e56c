"""Test that every strategy trains to the same losses and final parameters, in two real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gpudiag.training.strategies.registry import load_strategy
from tests.training.strategies.processes import Job
from tests.training.strategies.train_each import STEPS, make_data, make_model

PROGRAM = Path(__file__).with_name("train_each.py")

#: Strategies with options, and the tolerance of their losses relative to all-reduce in plain float32.
EXACT, ROUNDED = 2e-5, 2e-2
CASES: list[tuple[str, dict[str, Any], float]] = [
    ("gloo", {}, EXACT),
    ("gloo", {"compress": "bf16"}, ROUNDED),
    ("cpu-reduce", {}, EXACT),
    ("cpu-reduce", {"bucket_mb": 0.5}, EXACT),
    ("cpu-reduce", {"compress": "bf16"}, ROUNDED),
    ("cpu-reduce", {"compress": "fp16"}, ROUNDED),
    ("ps-cpu", {}, EXACT),
    ("ps-gpu", {}, EXACT),
    ("ps-gpu", {"ps_device": 1}, EXACT),
    ("fsdp", {}, EXACT),
    ("fsdp", {"compress": "bf16"}, ROUNDED),
]
ACCUMULATING = ["gloo", "cpu-reduce", "ps-cpu", "ps-gpu", "fsdp"]


@pytest.fixture(scope="module")
def trained() -> list[dict[str, Any]]:
    """Train with all strategies in one pair of processes, because starting processes takes longer than training."""
    strategies = [(name, options) for name, options, _ in CASES]
    strategies += [(name, {"accumulate": 2}) for name in ACCUMULATING] + [("independent", {})]
    with Job(PROGRAM, 2, {"device": "cpu", "strategies": strategies}) as job:
        answers = [job.answer(rank) for rank in range(2)]
    for mine, theirs in zip(*answers, strict=True):
        assert mine["losses"] == theirs["losses"]
        assert mine["flops"] == theirs["flops"]
    assert all(mine["sums"] == theirs["sums"] for mine, theirs in zip(*(found[:-1] for found in answers), strict=True))
    found: list[dict[str, Any]] = answers[0]
    return found


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{name}-{options}" for name, options, _ in CASES])
def test_losses_equal_plain_all_reduce(trained: list[dict[str, Any]], number: int) -> None:
    _, _, tolerance = CASES[number]
    assert trained[number]["losses"] == pytest.approx(trained[0]["losses"], abs=tolerance)
    assert trained[number]["sums"] == pytest.approx(trained[0]["sums"], rel=tolerance)


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("number", range(len(ACCUMULATING)), ids=ACCUMULATING)
def test_losses_equal_with_accumulated_gradients(trained: list[dict[str, Any]], number: int) -> None:
    first = len(CASES)
    assert trained[first + number]["losses"] == pytest.approx(trained[first]["losses"], abs=EXACT)
    # Half as many updates with twice the samples give a different loss curve.
    assert trained[first]["losses"] != pytest.approx(trained[0]["losses"], abs=1e-3)


@pytest.mark.xdist_group("processes")
def test_all_strategies_count_the_same_flops(trained: list[dict[str, Any]]) -> None:
    """Each batch has the FLOPs of 8 samples through a convolution of 3 to 8 channels and three layers."""
    layers = [(8 * 36, 600), (600, 600), (600, 5)]
    forward = 2 * 8 * (36 * 9 * 3 * 8 + sum(a * b for a, b in layers))
    whole = 3 * forward - 2 * 8 * 36 * 9 * 3 * 8
    counts = [found["flops"] for found in trained]
    accumulating = range(len(CASES), len(CASES) + len(ACCUMULATING))
    for number, found in enumerate(counts):
        assert sum(found["by_precision"].values()) == whole * (2 if number in accumulating else 1)
        assert (found["recomputed"], found["unknown"], found["reason"]) == (0, [], "")


@pytest.mark.xdist_group("processes")
def test_copies_strategy_trains_like_all_reduce(trained: list[dict[str, Any]]) -> None:
    """The strategy trains on the samples of both ranks: each replica takes the samples of one rank."""
    strategy = load_strategy("copies", torch.device("cpu"), devices=2)
    bare = make_model()
    model = strategy.wrap(bare)
    optimizer = strategy.optimizer(model, lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)
    data = list(zip(make_data(0), make_data(1), strict=True))
    losses = []
    for step in range(STEPS):
        inputs, target = map(torch.cat, zip(*data[step % len(data)], strict=True))
        loss = torch.nn.functional.cross_entropy(model(inputs), target)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        strategy.exchange(model)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(float(loss.detach()))
    assert losses == pytest.approx(trained[0]["losses"], abs=EXACT)
    assert [float(p.detach().double().abs().sum()) for p in bare.parameters()] == pytest.approx(
        trained[0]["sums"], rel=EXACT
    )
    first, second = (dict(replica.named_parameters()) for replica in model.get_submodule("replicas").children())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert sum(strategy.exchanged_bytes) == sum(4 * p.numel() for p in bare.parameters())


@pytest.mark.xdist_group("processes")
def test_loss_decreases_and_independent_differs(trained: list[dict[str, Any]]) -> None:
    assert trained[0]["losses"][-1] < trained[0]["losses"][0]
    assert trained[-1]["sums"] != pytest.approx(trained[0]["sums"], rel=1e-4)


@pytest.mark.xdist_group("processes")
def test_communicated_bytes_equal_gradient_bytes(trained: list[dict[str, Any]]) -> None:
    whole = {
        sum(found["exchanged_bytes"]) for (name, _, _), found in zip(CASES, trained, strict=False) if name != "gloo"
    }
    assert len(whole) == 1
    assert whole.pop() > 4 * 600 * 600
