"""Test that the built-in workloads have the documented models, and train."""

from __future__ import annotations

import itertools
import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from gpudiag.errors import UsageError
from gpudiag.training.jobs.precision import Arithmetic
from gpudiag.training.models.registry import DEFAULT_WORKLOAD, WORKLOADS, is_own, load_workload, workload_entry

if TYPE_CHECKING:
    from gpudiag.training.models.pytorch.workload import Workload

pytestmark = pytest.mark.long

CPU = torch.device("cpu")

#: Parameter counts from the papers, or counted by hand (see docs/workloads.md).
PARAMETERS = {
    "resnet20-cifar": 269_722,
    "mlp": 41_157_101,
    "resnet50": 25_557_032,
    "vgg16": 138_357_544,
    "gpt": 124_475_904,
    "unet3d": 93_659_931,
    "unet3d-predict": 93_659_931,
    "alexnet": 61_100_840,
    "inception3": 23_834_568,
    "resnet32-cifar": 464_154,
    "resnet44-cifar": 658_586,
    "resnet56-cifar": 853_018,
    "resnet110-cifar": 1_727_962,
    "densenet40-cifar": 1_019_722,
    "densenet100-cifar": 6_979_642,
    "cnn-cifar": 1_250_858,
    "alexnet-cifar": 1_756_426,
    "trivial": 150_529,
}

#: Parameter counts that tf_cnn_benchmarks logs for its CIFAR networks.
TF_CNN = {
    "resnet20-cifar": 271_164,
    "resnet32-cifar": 466_492,
    "resnet44-cifar": 661_820,
    "resnet56-cifar": 857_148,
    "resnet110-cifar": 1_736_124,
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
    """Train one step, check that parameters change unless gradient scaling may skip the update, and return the loss."""
    optimizer = workload.optimizer(model.parameters())
    with arithmetic.forward():
        loss = workload.loss(model(workload.prepare(inputs)), target)
    arithmetic.backward(loss)
    before = [p.detach().clone() for p in itertools.islice(model.parameters(), 2)]
    arithmetic.step(optimizer)
    changed = any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=False))
    assert changed or skipped_first
    return float(loss.detach())


def test_registry_lists_all_workloads() -> None:
    assert set(WORKLOADS) == set(PARAMETERS)
    assert DEFAULT_WORKLOAD in WORKLOADS


def bare(name: str) -> nn.Module:
    """Build the model on the meta device."""
    with torch.device("meta"):
        return load_workload(name, on_gpu=True).model()


def normalised_channels(model: nn.Module) -> int:
    return sum(module.num_features for module in model.modules() if isinstance(module, nn.BatchNorm2d))


@pytest.mark.parametrize("name", WORKLOADS)
def test_models_have_registered_parameter_counts(name: str) -> None:
    count = sum(p.numel() for p in bare(name).parameters() if p.requires_grad)
    assert count == PARAMETERS[name] == WORKLOADS[name].parameters
    assert f"{count:,}" in str(sys.modules[WORKLOADS[name].module].__doc__)


def test_workloads_page_equals_registry() -> None:
    page = (Path(__file__).parents[3] / "docs" / "workloads.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| ([\d,]+) \| .* \| (\d+) / (\d+) \| \w+ \|$", page, re.MULTILINE)
    documented = {name: (count, gpu, cpu) for name, count, gpu, cpu in rows}
    assert documented == {
        name: (f"{entry.parameters:,}", *map(str, entry.batches)) for name, entry in WORKLOADS.items()
    }


@pytest.mark.parametrize(("name", "logged"), TF_CNN.items())
def test_tf_cnn_counts_follow_from_parameters(name: str, logged: int) -> None:
    """The logged count also has running means and variances, an eleventh class (64 weights, a bias) and a counter."""
    assert PARAMETERS[name] + 2 * normalised_channels(bare(name)) + 65 + 1 == logged


def test_tf_cnn_count_of_alexnet_has_eleventh_class_and_global_step() -> None:
    assert PARAMETERS["alexnet-cifar"] + 193 + 1 == 1_756_620


def test_keras_count_of_inception_follows_from_parameters() -> None:
    """Keras's count also has the running means and variances of batch norms, and lacks their scales."""
    assert PARAMETERS["inception3"] + normalised_channels(bare("inception3")) == 23_851_784


#: Sample sizes to which samples are cut if the model accepts smaller samples, so that a step is short.
SMALL = {"resnet50": 64, "vgg16": 32, "inception3": 139, "densenet40-cifar": 16, "densenet100-cifar": 16}


#: Workloads with steps of 5 CPU seconds or more.
LARGE = ("gpt", "unet3d", "vgg16")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.apart if name in LARGE else ())
        for name, entry in WORKLOADS.items()
        if entry.trains
    ],
)
def test_each_workload_trains_a_step(name: str) -> None:
    workload = load_workload(name, on_gpu=False)
    inputs, target = workload.samples(1 if name in {"gpt", "unet3d"} else 2, torch.Generator().manual_seed(0))
    if name == "gpt":
        inputs, target = inputs[:, :8], target[:, :8]
    if name == "unet3d":
        inputs, target = inputs[:, :, :2, :27, :27], target[:, :, :2, :27, :27]
    if name in SMALL:
        inputs = inputs[:, :, : SMALL[name], : SMALL[name]]
    loss = train_step(workload, workload.model(), inputs, target, Arithmetic("fp32", CPU))
    if name == "gpt":  # the initial weights of gpt are small, so its predictions are random
        assert loss == pytest.approx(math.log(50_304), rel=0.1)
    assert math.isfinite(loss)


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_each_precision_trains_a_step(precision: str) -> None:
    workload = load_workload("resnet20-cifar", on_gpu=False)
    inputs, target = workload.samples(4, torch.Generator().manual_seed(0))
    arithmetic = Arithmetic(precision, CPU)  # type: ignore[arg-type]  # a literal
    # Gradient scaling starts too high on purpose, and skips updates until the scale is low enough.
    loss = train_step(workload, workload.model(), inputs, target, arithmetic, skipped_first=precision == "fp16")
    assert math.isfinite(loss)
    Arithmetic("fp32", CPU)
    assert torch.get_float32_matmul_precision() == "highest"


def test_unknown_workload_lists_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        workload_entry("resnet51")
    assert all(name in caught.value.hint for name in WORKLOADS)


@pytest.mark.parametrize(
    ("name", "own"),
    [("a:b", True), ("pkg.mod:main", True), ("a.py:b", True), *((name, False) for name in NOT_OWN)],
)
def test_is_own_recognises_module_function(name: str, own: bool) -> None:
    assert is_own(name) == own
