"""The built-in workloads are the models that they say they are, and train."""

from __future__ import annotations

import inspect
import itertools
import math
from typing import TYPE_CHECKING

import pytest
import torch

from gpudiag.errors import UsageError
from gpudiag.workloads.batches import batches
from gpudiag.workloads.precision import Arithmetic
from gpudiag.workloads.registry import DEFAULT_WORKLOAD, WORKLOADS, is_own, load_workload, workload_entry

if TYPE_CHECKING:
    from torch import nn

    from gpudiag.workloads.workload import Workload

CPU = torch.device("cpu")

PARAMETERS = {
    "resnet20-cifar": 269_722,
    "mlp": 41_157_101,
    "resnet50": 25_557_032,
    "vgg16": 138_357_544,
    "gpt": 124_475_904,
}


NOT_OWN = ("mlp", "a:b:c", ":b", "a/b:c", "a:", "1a:b")


def train_step(
    workload: Workload,
    model: nn.Module,
    inputs: torch.Tensor,
    target: torch.Tensor,
    arithmetic: Arithmetic,
    *,
    skipped_first: bool = False,
) -> float:
    optimizer = workload.optimizer(model.parameters())
    with arithmetic.forward():
        loss = workload.loss(model(workload.prepare(inputs)), target)
    arithmetic.backward(loss)
    before = [p.detach().clone() for p in itertools.islice(model.parameters(), 2)]
    arithmetic.step(optimizer)
    changed = any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=False))
    assert changed or skipped_first
    return float(loss.detach())


def test_names() -> None:
    assert set(WORKLOADS) == set(PARAMETERS)
    assert DEFAULT_WORKLOAD in WORKLOADS


@pytest.mark.parametrize("name", WORKLOADS)
def test_each_has_its_parameters_and_trains(name: str) -> None:
    workload = load_workload(name, on_gpu=False)
    inputs, target = workload.samples(2, torch.Generator().manual_seed(0))
    if name == "gpt":
        inputs, target = inputs[:1, :8], target[:1, :8]
    model = workload.model()
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]
    loss = train_step(workload, model, inputs, target, Arithmetic("fp32", CPU))
    if name == "gpt":  # which begins with small weights, so that it is as good as guessing
        assert loss == pytest.approx(math.log(50_304), rel=0.1)
    assert math.isfinite(loss)


def test_documented_counts_are_the_true_ones() -> None:
    for name, count in PARAMETERS.items():
        module = inspect.getmodule(type(load_workload(name, on_gpu=False)))
        assert f"{count:,}" in str(module.__doc__)


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_precisions(precision: str) -> None:
    workload = load_workload("resnet20-cifar", on_gpu=False)
    inputs, target = workload.samples(4, torch.Generator().manual_seed(0))
    arithmetic = Arithmetic(precision, CPU)  # type: ignore[arg-type]  # one of those that there are
    # Gradient scaling begins too high on purpose, and leaves out updates until it has come down.
    loss = train_step(workload, workload.model(), inputs, target, arithmetic, skipped_first=precision == "fp16")
    assert math.isfinite(loss)
    Arithmetic("fp32", CPU)
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(("source", "workers"), [("device", 0), ("host", 0), ("loader", 0), ("loader", 1)])
def test_batches_have_the_size_asked_for_from_any_source(source: str, workers: int) -> None:
    workload = load_workload("resnet20-cifar", on_gpu=False)
    endless = batches(workload, source, batch_size=6, workers=workers, device=CPU, seed=3)  # type: ignore[arg-type]  # ditto
    for inputs, target in itertools.islice(endless, 120):
        assert (tuple(inputs.shape), inputs.dtype) == ((6, 3, 32, 32), torch.uint8)
        assert target.shape == (6,)


def test_unknown_names_list_those_that_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        workload_entry("resnet51")
    assert all(name in caught.value.hint for name in WORKLOADS)


@pytest.mark.parametrize(
    ("name", "own"),
    [("a:b", True), ("pkg.mod:main", True), ("a.py:b", True), *((name, False) for name in NOT_OWN)],
)
def test_what_counts_as_a_function_of_ones_own(name: str, own: bool) -> None:
    assert is_own(name) == own
