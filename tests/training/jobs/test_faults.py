"""Test that each fault affects a real training process only while it is on."""

from __future__ import annotations

import os
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gpudiag.app.selftest.catalogue import CATALOGUE
from gpudiag.model.benchmarks.selftest import FaultPlan, SelftestPlan
from gpudiag.training.frameworks.registry import framework_named
from gpudiag.training.jobs.faults.fault import Fault, make_fault
from gpudiag.training.jobs.faults.pytorch.parallel_faults import PARALLEL_KINDS
from gpudiag.training.jobs.faults.pytorch.registry import KINDS
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.long


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Iterator[DdpTrainer]:
    """Yield a trainer in this process as the only rank; check that its reducer is freed."""
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
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several threads would wait for each other on busy cores
    made = DdpTrainer(plan)
    made.warm_up(0.0)
    made.train(next(iter(made.loader)))
    reducer = weakref.ref(made.ddp.reducer)
    yield made
    made.close()
    assert reducer() is None, "a reducer that is still alive would wait for the threads of its process group"
    torch.set_num_threads(threads)


def fault_of(trainer: DdpTrainer, plan: FaultPlan) -> Fault[DdpTrainer]:
    return make_fault(KINDS, plan, trainer)


def update(trainer: DdpTrainer) -> list[torch.Tensor]:
    """Return the change of each parameter by one step on fixed data, and undo the step."""
    state = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.optimizer.state.clear()  # remove the momentum of earlier steps
    trainer.train((torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.tensor([1, 2])))
    moved = [(parameter - state[name]).detach() for name, parameter in trainer.model.named_parameters()]
    trainer.model.load_state_dict(state)
    return moved


def test_catalogue_and_registry_have_the_same_faults() -> None:
    assert {entry.kind for entry in CATALOGUE.values()} == {*KINDS, *PARALLEL_KINDS}
    assert framework_named("pytorch").fault_kinds == {*KINDS, *PARALLEL_KINDS}


def test_warm_up_measures_clean_step_time(trainer: DdpTrainer) -> None:
    assert trainer.clean_ms > 0
    assert len(trainer.timed(3, run_in=1).step_ms) == 3


def test_late_loader_delays_batches_only_while_on(trainer: DdpTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = fault_of(trainer, FaultPlan(name="late", kind="late-loader", amount=2.0))
    batches = iter(trainer.loader)
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    for on in (True, False):
        fault.switch(on=on)
        next(batches)
    assert slept == [pytest.approx(2e-3 * trainer.clean_ms)]


def test_fault_of_another_rank_does_nothing(trainer: DdpTrainer) -> None:
    fault = fault_of(trainer, FaultPlan(name="late", kind="late-loader", amount=2.0, ranks=(1,)))
    fault.switch(on=True)
    assert trainer.loader.late_s == 0.0
    compute = fault_of(trainer, FaultPlan(name="slow", kind="extra-compute", amount=1.0, ranks=(1,)))
    compute.switch(on=True)
    assert trainer.extra is None


def test_extra_compute_is_proportional_to_amount(trainer: DdpTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    products = []
    multiply = torch.mm

    def counted(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        products.append(a)
        return multiply(a, b, out=out)

    monkeypatch.setattr(torch, "mm", counted)
    monkeypatch.setattr(trainer, "milliseconds_of", lambda _work, repeats: trainer.clean_ms / 10)  # time of one product
    counts = []
    for amount in (1.0, 8.0):
        fault = fault_of(trainer, FaultPlan(name="slow", kind="extra-compute", amount=amount))
        fault.switch(on=True)
        assert trainer.extra is not None
        products.clear()
        trainer.extra()
        counts.append(len(products))
        fault.rest()
        assert trainer.extra is None
    assert counts == [10, 80]


@pytest.mark.parametrize("mode", ["slow", "meeting"])
def test_communication_of_one_process_keeps_gradients(trainer: DdpTrainer, mode: Any) -> None:
    plain = update(trainer)
    trainer.communication.extra, trainer.communication.mode = 3.0, mode
    for gradient, expected in zip(update(trainer), plain, strict=True):
        assert torch.allclose(gradient, expected, atol=1e-6)


def test_fault_at_rest_leaves_communication_unchanged(trainer: DdpTrainer) -> None:
    fault = fault_of(trainer, FaultPlan(name="exchange", kind="whole-exchange"))
    modes = []
    for on in (True, False):
        fault.switch(on=on)
        modes.append(trainer.communication.mode)
    fault.rest()
    assert [*modes, trainer.communication.mode] == ["plain", "meeting", "plain"]


def test_syncs_fault_hooks_layers_only_while_on(trainer: DdpTrainer) -> None:
    fault = fault_of(trainer, FaultPlan(name="sync", kind="syncs", amount=1.0))
    layers = [module for module in trainer.model.modules() if next(module.children(), None) is None]
    fault.switch(on=True)
    assert all(layer._forward_hooks for layer in layers)
    trainer.step()
    fault.rest()
    assert not any(layer._forward_hooks for layer in layers)


@pytest.mark.processes
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be told from all")
def test_pinned_core_pins_all_threads_beside_a_busy_program(trainer: DdpTrainer) -> None:
    usual = os.sched_getaffinity(0)
    before = set(_children())
    fault = fault_of(trainer, FaultPlan(name="pinned", kind="pinned-core", amount=1.0))
    try:
        fault.switch(on=True)
        tasks = [int(task.name) for task in Path("/proc/self/task").iterdir()]
        assert {frozenset(os.sched_getaffinity(task)) for task in tasks} == {frozenset({max(usual)})}
        children = set(_children()) - before  # libraries of other tests may have child processes
        assert children
    finally:
        fault.rest()
        fault.close()
    assert os.sched_getaffinity(0) == usual
    assert not children & set(_children())


def _children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
