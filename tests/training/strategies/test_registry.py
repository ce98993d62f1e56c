"""Test the registry of strategies, and the jobs that strategies refuse."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import nn

from gpudiag.errors import HardwareMissingError, UsageError
from gpudiag.model.job import CommunicationOptions
from gpudiag.training.strategies.pytorch_strategy import PytorchStrategy
from gpudiag.training.strategies.registry import check_communication, load_strategy, strategies, strategy_entry


def test_registry_lists_strategies_in_order() -> None:
    designed = "nccl gloo cpu-reduce ps-cpu ps-gpu data-parallel copies fsdp independent"
    assert tuple(strategies()) == tuple(designed.split())
    assert [name for name, entry in strategies().items() if entry.needs_gpu] == ["nccl", "data-parallel"]
    assert [name for name, entry in strategies().items() if not entry.communicates] == ["independent"]


@pytest.mark.parametrize("name", strategies())
def test_each_strategy_is_documented_in_its_module(name: str) -> None:
    strategy = load_strategy(name, torch.device("cpu"))
    assert isinstance(strategy, PytorchStrategy)
    assert importlib.import_module(strategies()[name].__module__).__doc__.count(f"`{name}`")  # type: ignore[union-attr]
    assert strategies()[name].summary.endswith(".")


def test_unknown_strategy_lists_known_ones() -> None:
    with pytest.raises(UsageError, match="no strategy 'nicl'") as caught:
        strategy_entry("nicl")
    assert all(name in caught.value.hint for name in strategies())


def test_gloo_has_a_process_per_device() -> None:
    assert strategy_entry("gloo").processes(4) == 4


def check(name: str, *, devices: int = 4, nodes: int = 1, precision: str | None = None, **options: Any) -> None:
    check_communication(
        strategy_entry(name), CommunicationOptions(**options), devices=devices, nodes=nodes, precision=precision
    )


def test_every_option_applies_to_some_strategy() -> None:
    everything = CommunicationOptions(bucket_mb=1.0, compress="bf16", accumulate=2, nccl_algo="ring", ps_device=0)
    assert set(everything.given()) == {name for entry in strategies().values() for name in entry.takes}
    assert CommunicationOptions().given() == {}


@pytest.mark.parametrize("name", strategies())
def test_options_that_do_not_apply_are_refused(name: str) -> None:
    everything: dict[str, Any] = {
        "bucket_mb": 1.0,
        "compress": "fp16",
        "accumulate": 2,
        "nccl_algo": "tree",
        "ps_device": 0,
    }
    for option, value in everything.items():
        if option in strategies()[name].takes:
            check(name, **{option: value})
        else:
            with pytest.raises(UsageError, match=f"--{option.replace('_', '-')} does not apply to {name}") as caught:
                check(name, **{option: value})
            assert any(other in caught.value.hint for other in strategies())


def test_impossible_jobs_are_refused() -> None:
    with pytest.raises(UsageError, match="devices 0 to 3"):
        check("ps-gpu", ps_device=4)
    for name in ("cpu-reduce", "ps-cpu", "data-parallel"):
        with pytest.raises(UsageError, match="within one node"):
            check(name, nodes=2)
    for name in ("cpu-reduce", "ps-cpu", "ps-gpu"):
        with pytest.raises(HardwareMissingError, match="at least 2 devices"):
            check(name, devices=1)
    for name in ("ps-cpu", "ps-gpu", "fsdp"):
        with pytest.raises(UsageError, match="--precision fp16") as caught:
            check(name, precision="fp16")
        assert "bf16" in caught.value.hint
        check(name, precision="bf16")


@pytest.mark.parametrize("name", ["data-parallel", "copies"])
def test_single_process_strategy_starts_one_process(name: str) -> None:
    assert strategy_entry(name).processes(4) == 1


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Sequential(nn.Embedding(9, 3, sparse=True), nn.Linear(3, 2)), "gradients of 0 are sparse"),
        (nn.Linear(3, 2, dtype=torch.complex64), "weight, bias: complex"),
        (nn.Linear(3, 2).requires_grad_(False), "no parameter to train"),
    ],
)
def test_models_with_unsupported_gradients_are_refused(model: nn.Module, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_strategy("nccl", torch.device("cpu")).check_model(model)


def test_parameter_without_gradient_is_named_after_first_step() -> None:
    model = nn.ModuleDict({"used": nn.Linear(3, 2), "forgotten": nn.Linear(3, 2)})
    model["used"](torch.ones(1, 3)).sum().backward()
    strategy = load_strategy("gloo", torch.device("cpu"))
    with pytest.raises(UsageError, match=r"forgotten\.weight, forgotten\.bias got no gradient"):
        strategy.check_gradients(model)
    strategy.check_gradients(model)  # gradients are checked only once
