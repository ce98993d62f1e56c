"""Test that faults of real loops, and job variants, affect a real training process and are undone."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from gpudiag.model.benchmarks.selftest import ABLATION_FILE, FAILURE_FILE, FaultPlan, SelftestPlan
from gpudiag.training.frameworks.registry import framework_named
from gpudiag.training.frameworks.runtimes import load_runtime
from gpudiag.training.jobs.data.batches import Pool
from gpudiag.training.jobs.faults.fault import Fault, make_fault
from gpudiag.training.jobs.faults.job import FaultTrials
from gpudiag.training.jobs.faults.pytorch import host, loading
from gpudiag.training.jobs.faults.pytorch.registry import KINDS
from gpudiag.training.jobs.faults.pytorch.step_faults import SmallCopies
from gpudiag.training.jobs.faults.pytorch.tensor_parallel import SplitFeedForward, TensorGroup
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer
from gpudiag.training.jobs.faults.pytorch.variants import CheckpointedBlock

pytestmark = pytest.mark.long

PLAN = SelftestPlan(
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


@pytest.fixture(scope="module")
def trainer() -> Iterator[DdpTrainer]:
    """Yield a trainer in this process as the only rank, shared by all tests of the module."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several threads would wait for each other on busy cores
    gc.unfreeze()  # pytest freezes objects while collecting tests
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
            patch.setenv(name, value)
        made = DdpTrainer(PLAN)
        made.warm_up(0.0)
        yield made
        made.close()
    gc.freeze()
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def clean(trainer: DdpTrainer) -> Iterator[None]:
    """Check after each test that the fault has left no change."""
    yield
    loader = trainer.loader
    assert (trainer.extra, trainer.before_update, trainer.after, trainer.other_step) == (None,) * 4
    assert loader.source is loader.usual
    assert trainer.communication.mode == "plain"
    assert gc.get_freeze_count() == 0


def fault_of(trainer: DdpTrainer, kind: str, amount: float = 1.0, ranks: tuple[int, ...] = ()) -> Fault[DdpTrainer]:
    return make_fault(KINDS, FaultPlan(name=kind, kind=kind, amount=amount, ranks=ranks), trainer)


def test_slow_storage_sleeps_per_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    pool = Pool(torch.zeros(4, 3), torch.zeros(4))
    storage = loading._SlowStorage(pool, 0.25)
    assert [len(piece) for piece in torch.utils.data.default_collate([storage[0], storage[5]])] == [2, 2]
    assert slept == [0.25, 0.25]


@pytest.mark.processes
def test_too_few_workers_feed_the_loop_while_on(trainer: DdpTrainer) -> None:
    fault = fault_of(trainer, "too-few-workers", amount=0.5)
    fault.switch(on=True)
    source = trainer.loader.source
    trainer.step()
    fault.switch(on=False)
    trainer.step()
    fault.switch(on=True)
    assert trainer.loader.source is source
    trainer.step()
    fault.rest()
    fault.close()


@pytest.mark.parametrize("kind", ["logs", "saves"])
def test_logs_and_saves_write_in_proportion_to_the_amount(
    trainer: DdpTrainer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The amount is in clean steps: if a trial takes as long as a clean step, 2.0 writes twice as much as the trial.
    monkeypatch.setattr(host, "_host_ms", lambda _function: trainer.clean_ms)
    fault: Any = fault_of(trainer, kind, amount=2.0)
    fault.switch(on=True)
    trainer.step()
    if kind == "logs":
        fault._file.seek(0)
        written = fault._file.read().splitlines()
        assert len(written) == 2 * host._TRIAL_LINES
        assert all(json.loads(line) for line in written)
    else:
        saved = torch.load(Path(fault._directory.name) / "checkpoint.pt", weights_only=True)
        assert len(saved) == 2 * host._TRIAL_TENSORS
    fault.rest()
    fault.close()


@pytest.mark.parametrize(
    "kind", ["logs", "saves", "collections", "double-batches", "small-copies", "looped-optimizer", "emptied-cache"]
)
def test_unaffected_ranks_do_nothing(trainer: DdpTrainer, kind: str) -> None:
    fault = fault_of(trainer, kind, ranks=(1,))
    fault.switch(on=True)
    assert trainer.before_update is None
    assert trainer.extra is None
    assert trainer.loader.source is trainer.loader.usual
    assert kind == "looped-optimizer" or trainer.after is None
    fault.rest()
    fault.close()


def test_emptied_cache_runs_after_each_update(trainer: DdpTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(len(trainer.optimizer.state)))
    fault = fault_of(trainer, "emptied-cache")
    trainer.step()
    assert not emptied
    fault.switch(on=True)
    trainer.step()
    trainer.step()
    fault.rest()
    trainer.step()
    assert len(emptied) == 2


def test_collections_run_before_each_update(trainer: DdpTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_TRIAL_OBJECTS", 1000)
    monkeypatch.setattr(host, "_host_ms", lambda _function: trainer.clean_ms)
    fault: Any = fault_of(trainer, "collections", amount=3.0)
    fault.switch(on=True)
    assert len(fault._heap) == 3000
    before = gc.get_stats()[2]["collections"]
    trainer.step()
    assert gc.get_stats()[2]["collections"] > before
    fault.rest()
    assert fault._heap == []


def test_fault_reads_between_layers_only_while_on(trainer: DdpTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "item", lambda tensor: read.append(tensor))  # noqa: PLW0108 # must be bound
    fault = fault_of(trainer, "between-layers")
    counts = []
    for on in (True, False):
        fault.switch(on=on)
        read.clear()
        trainer.ddp(torch.zeros(2, 3, 32, 32))
        counts.append(len(read))
    fault.rest()
    assert counts == [12, 0]  # reads after the first layer, its norm, nine blocks and the classifier
    assert not any(module._forward_hooks for module in trainer.model.modules())


def test_varying_lengths_give_each_rank_the_long_batch_in_turn(trainer: DdpTrainer) -> None:
    fault: Any = fault_of(trainer, "varying-lengths", amount=0.5)
    fault.switch(on=True)
    assert [len(next(trainer.loader.source)[0]) for _ in range(3)] == [2, 2, 2]  # the only rank has the longest batch
    fault.switch(on=False)
    assert [len(next(trainer.loader.source)[0]) for _ in range(3)] == [1, 1, 1]
    fault.rest()
    tokens = torch.zeros(3, 8, dtype=torch.long)
    assert [tuple(piece.shape) for piece in fault._cut((tokens, tokens), 0.5)] == [(3, 4), (3, 4)]


def test_double_batches_become_float32_on_the_device(trainer: DdpTrainer) -> None:
    fault = fault_of(trainer, "double-batches")
    fault.switch(on=True)
    inputs, target = next(trainer.loader.source)
    assert inputs.dtype == torch.float64
    assert trainer.on_device((inputs, target))[0].dtype == torch.float32
    trainer.step()
    fault.rest()


def test_number_of_small_copies_is_proportional_to_the_amount(
    trainer: DdpTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "milliseconds_of", lambda _work, repeats: trainer.clean_ms)
    fault = fault_of(trainer, "small-copies", amount=4.0)
    assert isinstance(fault, SmallCopies)
    assert len(fault.tensors) == 200
    fault.switch(on=True)
    trainer.step()
    fault.rest()


def test_looped_and_fused_optimizer_give_equal_updates(trainer: DdpTrainer) -> None:
    moved = []
    for on in (True, False):
        fault: Any = fault_of(trainer, "looped-optimizer", amount=0.1)
        fault.switch(on=on)
        trainer.step()
        moved.append(fault._looped.param_groups[0]["params"][0].detach().clone())
        fault.rest()
    assert moved[0].abs().sum() > 0
    assert torch.allclose(moved[0], moved[1])


def test_synchronized_batch_norms_share_parameters(trainer: DdpTrainer) -> None:
    def norms() -> list[Any]:
        return [module for module in trainer.model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]

    plain = norms()
    fault = fault_of(trainer, "sync-batchnorm")
    fault.switch(on=True)
    together = norms()
    assert {type(norm) for norm in together} == {nn.SyncBatchNorm}
    assert all(mine.weight is theirs.weight for mine, theirs in zip(plain, together, strict=True))
    fault.rest()
    assert norms() == plain


@pytest.mark.parametrize("kind", ["accumulation", "checkpointing", "fsdp2", "side-stream-copies"])
def test_job_variant_trains_with_and_without_communication(trainer: DdpTrainer, kind: str) -> None:
    variant = fault_of(trainer, kind)
    for on in (True, False):
        variant.switch(on=on)
        assert trainer.communication.happens is on
        trainer.step()
    variant.rest()
    assert trainer.strategy == "gloo"
    assert not any(isinstance(module, CheckpointedBlock) for module in trainer.model.modules())


def test_accumulation_updates_once_per_two_batches(trainer: DdpTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(trainer, "backward", lambda *_arguments, communicating: seen.append(communicating))
    variant = fault_of(trainer, "accumulation")
    variant.switch(on=True)
    trainer.step()
    variant.switch(on=False)
    trainer.step()
    variant.rest()
    assert seen == [False, True, False, False]


def test_compiled_variant_compiles_each_block(trainer: DdpTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []

    def compile_block(block: nn.Module) -> nn.Module:
        compiled.append(block)
        return nn.Sequential(block)

    monkeypatch.setattr(torch, "compile", compile_block)
    variant = fault_of(trainer, "compiled")
    assert len(compiled) == 9
    variant.switch(on=True)
    trainer.step()
    variant.rest()


def test_split_layers_add_up_to_the_whole_layer() -> None:
    """Without communication each half returns its share; the shares sum to the layer, in forward and backward."""
    torch.manual_seed(0)
    width, results, gradients = 8, [], []
    up, down = torch.randn(4 * width, width), torch.randn(width, 4 * width)
    sharing = TensorGroup(None)  # type: ignore[arg-type]  # unused without communication
    sharing.happens = False
    x = torch.randn(5, width)
    for half in (slice(0, 2 * width), slice(2 * width, None)):
        layer = SplitFeedForward(width, 2, sharing)
        with torch.no_grad():
            layer.up.weight.copy_(up[half])
            layer.up.bias.zero_()
            layer.down.weight.copy_(down[:, half])
        mine = x.clone().requires_grad_()
        (layer(mine) - mine).square().sum().backward()
        results.append((layer(x) - x).detach())
        gradients.append(mine.grad)
    whole = functional.gelu(functional.layer_norm(x, (width,)) @ up.T) @ down.T
    assert torch.allclose(sum(results, torch.zeros(5, width)), whole, atol=1e-4)
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)


def trials_of(
    trainer: DdpTrainer, tmp_path: Path, kinds: dict[str, type[Fault[DdpTrainer]]]
) -> FaultTrials[DdpTrainer]:
    return FaultTrials(PLAN, trainer, kinds, load_runtime(framework_named("pytorch").name), tmp_path)


def test_launch_cost_of_a_variant_is_timed_behind_a_held_device(
    trainer: DdpTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[float] = []
    monkeypatch.setattr(trainer, "holds", True)
    monkeypatch.setattr(trainer, "hold", held.append)
    trials = trials_of(trainer, tmp_path, KINDS)
    trials.ablate(FaultPlan(name="accumulation", kind="accumulation", job=True))
    ablation = json.loads((tmp_path / "accumulation" / ABLATION_FILE).read_text(encoding="utf-8"))
    assert [block["on"] for block in ablation["blocks"]] == [False, True]
    assert [block["on"] for block in ablation["held"]] == [False, True, True, False]
    assert all(len(block["step_ms"][0]) == 4 for block in ablation["held"])
    assert len(held) == 8
    slowest = max(ms for block in ablation["blocks"] if block["on"] for ms in block["step_ms"][0])
    assert min(held) >= slowest


def test_failed_fault_is_skipped_and_others_continue(trainer: DdpTrainer, tmp_path: Path) -> None:
    class Failing(Fault[DdpTrainer]):
        def switch(self, *, on: bool) -> None:
            if on:
                raise ValueError("no such thing here")

    trials = trials_of(trainer, tmp_path, {"failing": Failing, "none": KINDS["none"]})
    plans = [FaultPlan(name=name, kind=name) for name in ("failing", "none")]
    for trial in (trials.ablate, trials.profile):
        for plan in plans:
            trials.attempt(plan, trial)
    failure = json.loads((tmp_path / "failing" / FAILURE_FILE).read_text(encoding="utf-8"))
    assert failure["why"] == "failed: ValueError: no such thing here"
    assert not (tmp_path / "failing" / ABLATION_FILE).exists()
    assert (tmp_path / "none" / "run.json").is_file()
