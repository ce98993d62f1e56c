"""Each fault in one real training process: what it does while it is on, and that nothing of it stays."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gpudiag.model.selftest import FaultPlan, SelftestPlan
from gpudiag.selftest.catalogue import CATALOGUE
from gpudiag.workloads.faults.registry import KINDS, make_fault
from gpudiag.workloads.faults.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Trainer]:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    plan = SelftestPlan(
        workload="resnet20-cifar",
        device="cpu",
        batch_size=2,
        precision="fp32",
        memory_format="nchw",
        faults=(),
        pairs=1,
        block_ms=1.0,
        least_steps=1,
        active=3,
        warm_up_s=0.0,
    )
    made = Trainer(plan)
    made.warm_up(0.0)
    yield made
    made.close()


def update(trainer: Trainer) -> list[torch.Tensor]:
    """By how much one step on the same data moves each of the same parameters; it is undone."""
    state = {name: value.clone() for name, value in trainer.bare.state_dict().items()}
    trainer._optimizer.state.clear()  # no momentum from before
    trainer.train((torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.tensor([1, 2])))
    moved = [(parameter - state[name]).detach() for name, parameter in trainer.bare.named_parameters()]
    trainer.bare.load_state_dict(state)
    return moved


def test_every_fault_of_the_catalogue_is_there() -> None:
    assert {entry.kind for entry in CATALOGUE.values()} == set(KINDS)


def test_warming_up_finds_the_clean_step_time(trainer: Trainer) -> None:
    assert trainer.clean_ms > 0
    assert len(trainer.timed(3, run_in=1)) == 3


def test_a_late_loader_is_late_while_it_is_on(trainer: Trainer) -> None:
    fault = make_fault(FaultPlan(name="late", kind="late-loader", amount=2.0), trainer)
    batches = iter(trainer.loader)
    for on in (True, False):
        fault.switch(on=on)
        began = time.perf_counter()
        next(batches)
        assert (time.perf_counter() - began >= 2e-3 * trainer.clean_ms) is on


def test_a_fault_of_another_rank_does_nothing_here(trainer: Trainer) -> None:
    fault = make_fault(FaultPlan(name="late", kind="late-loader", amount=2.0, ranks=(1,)), trainer)
    fault.switch(on=True)
    assert trainer.loader.late_s == 0.0
    compute = make_fault(FaultPlan(name="slow", kind="extra-compute", amount=1.0, ranks=(1,)), trainer)
    compute.switch(on=True)
    assert trainer.extra is None


def test_extra_compute_grows_with_what_is_asked(trainer: Trainer) -> None:
    spent_s = []
    for amount in (1.0, 8.0):
        fault = make_fault(FaultPlan(name="slow", kind="extra-compute", amount=amount), trainer)
        fault.switch(on=True)
        assert trainer.extra is not None
        began = time.thread_time()
        trainer.extra()
        spent_s.append(time.thread_time() - began)
        fault.rest()
        assert trainer.extra is None
    assert spent_s[1] > 2 * spent_s[0] > 0


@pytest.mark.parametrize("way", ["slow", "barely"])
def test_every_exchange_leaves_the_gradients_of_one_process_as_they_are(trainer: Trainer, way: Any) -> None:
    plain = update(trainer)
    trainer.exchange.extra, trainer.exchange.way = 3.0, way
    for mine, theirs in zip(update(trainer), plain, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)


def test_the_exchange_is_as_it_was_once_the_fault_rests(trainer: Trainer) -> None:
    fault = make_fault(FaultPlan(name="exchange", kind="whole-exchange"), trainer)
    ways = []
    for on in (True, False):
        fault.switch(on=on)
        ways.append(trainer.exchange.way)
    fault.rest()
    assert [*ways, trainer.exchange.way] == ["plain", "barely", "plain"]


def test_layers_are_hooked_only_while_the_fault_is_on(trainer: Trainer) -> None:
    fault = make_fault(FaultPlan(name="sync", kind="syncs", amount=1.0), trainer)
    layers = [module for module in trainer.bare.modules() if next(module.children(), None) is None]
    fault.switch(on=True)
    assert all(layer._forward_hooks for layer in layers)
    trainer.step()
    fault.rest()
    assert not any(layer._forward_hooks for layer in layers)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be told from all")
def test_all_threads_share_one_core_with_a_busy_program(trainer: Trainer) -> None:
    usual = os.sched_getaffinity(0)
    fault = make_fault(FaultPlan(name="pinned", kind="pinned-core", amount=1.0), trainer)
    try:
        fault.switch(on=True)
        tasks = [int(task.name) for task in Path("/proc/self/task").iterdir()]
        assert {frozenset(os.sched_getaffinity(task)) for task in tasks} == {frozenset({max(usual)})}
        children = _children()
        assert children
    finally:
        fault.rest()
        fault.close()
    assert os.sched_getaffinity(0) == usual
    assert not set(children) & set(_children())


def _children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
