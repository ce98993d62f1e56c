"""Strategies by name."""

from __future__ import annotations

import importlib

import pytest
import torch

from gpudiag.errors import UsageError
from gpudiag.strategies.registry import STRATEGIES, load_strategy, strategy_entry
from gpudiag.strategies.strategy import Strategy


def test_names() -> None:
    assert set(STRATEGIES) == {"nccl", "gloo", "independent"}
    assert [name for name, entry in STRATEGIES.items() if entry.needs_gpu] == ["nccl"]


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_is_a_strategy_with_a_docstring(name: str) -> None:
    strategy = load_strategy(name, torch.device("cpu"))
    assert isinstance(strategy, Strategy)
    assert importlib.import_module(STRATEGIES[name].module).__doc__.startswith(f"`{name}`")  # type: ignore[union-attr]  # it has one
    assert STRATEGIES[name].summary.endswith(".")


def test_an_unknown_name_lists_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="no strategy 'nicl'") as caught:
        strategy_entry("nicl")
    assert all(name in caught.value.hint for name in STRATEGIES)


def test_each_device_has_a_process() -> None:
    assert strategy_entry("gloo").processes(4) == 4
