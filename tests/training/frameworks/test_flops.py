"""Compare floating-point operations of a step with hand counts, and check that counting leaves the step unchanged."""

from __future__ import annotations

import itertools
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

from gpudiag.training.frameworks.pytorch.flops import FlopCounter
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpudiag.model.run import StepFlops


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    """Discard code that this process has compiled, before and after the test."""

    def forget() -> None:
        dynamo: Any = sys.modules.get("torch._dynamo.utils")
        if dynamo is not None:
            torch.compiler.reset()  # without a reset, code that is compiled already would not be compiled again
            dynamo.counters.clear()

    forget()
    yield
    forget()


def counted(step: Callable[[], object], model: nn.Module | None = None) -> StepFlops:
    counter = FlopCounter(model or nn.Identity())
    with counter:
        step()
    assert _get_current_dispatch_mode_stack() == []
    assert counter.result is not None
    return counter.result


def flops(step: Callable[[], object]) -> int:
    flops = counted(step)
    assert (flops.recomputed, flops.unknown, flops.reason) == (0, (), "")
    return sum(flops.by_precision.values())


def backward(loss: torch.Tensor) -> None:
    loss.sum().backward()  # type: ignore[no-untyped-call]  # torch's own


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


@examples(30)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.integers(1, 5), st.integers(1, 3))
def test_linear_layers_match_hand_count(widths: list[int], batch: int, times: int) -> None:
    """Per sample, a weight takes two FLOPs in forward, two for its gradient, and two for the gradient of its input.

    The first layer has no gradient of its input.
    """
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    model, inputs = nn.Sequential(*layers), torch.ones(batch, widths[0])
    each = [2 * batch * layer.weight.numel() for layer in layers]

    def step() -> None:
        for _ in range(times):
            backward(model(inputs))

    assert flops(step) == times * (3 * sum(each) - each[0])
    assert flops(lambda: model(inputs)) == sum(each)


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_convolutions_match_hand_count(groups: int) -> None:
    image = torch.ones(2, 8, 6, 6, requires_grad=True)
    forward = 2 * 2 * 36 * 8 * 9 * 8 // groups
    assert flops(lambda: backward(nn.Conv2d(8, 8, 3, padding=1, groups=groups)(image))) == 3 * forward
    # A transposed convolution multiplies each input pixel by each weight once.
    forward = 2 * 2 * 36 * 8 * 4 * 16 // groups
    assert flops(lambda: backward(nn.ConvTranspose2d(8, 16, 2, stride=2, groups=groups)(image))) == 3 * forward


def test_attention_is_counted_on_a_cpu() -> None:
    query = torch.ones(3, 2, 7, 4, requires_grad=True)
    attend = nn.functional.scaled_dot_product_attention
    product = 2 * 3 * 2 * 7 * 7 * 4
    # Forward has two products. Backward has four products, and a fifth that recomputes the attention scores.
    assert flops(lambda: attend(query, query, query)) == 2 * product
    assert flops(lambda: backward(attend(query, query, query))) == (2 + 5) * product


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_recomputation_is_counted_separately(reentrant: bool) -> None:
    model, inputs = perceptron(), torch.ones(5, 8, requires_grad=True)
    plain = flops(lambda: backward(model(inputs)))
    found = counted(lambda: backward(checkpoint(model, inputs, use_reentrant=reentrant)))
    assert found.by_precision == {"fp32": plain}
    assert 0 < found.recomputed <= plain / 3


def test_differentiated_backward_is_not_recomputation() -> None:
    model, inputs = nn.Linear(8, 4), torch.ones(5, 8, requires_grad=True)

    def penalty() -> None:
        (gradient,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
        backward(gradient**2)

    # The three products are forward, the gradient of the inputs, and the gradient of the weights through that gradient.
    assert flops(penalty) == 3 * 2 * 5 * 8 * 4


def test_precision_is_that_of_matrix_units() -> None:
    model, inputs = perceptron(), torch.ones(5, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert list(counted(lambda: model(inputs)).by_precision) == ["bf16"]
    assert list(counted(lambda: model.double()(inputs.double())).by_precision) == ["fp64"]
    with torch.inference_mode():
        assert counted(lambda: model(inputs.double())).by_precision == {"fp64": 2 * 5 * (8 * 16 + 16 * 4)}


def test_reason_is_given_when_operations_cannot_be_observed() -> None:
    model, inputs = perceptron(), torch.ones(5, 8)

    def in_a_thread() -> None:
        outputs = []
        thread = threading.Thread(target=lambda: outputs.append(model(inputs)))
        thread.start()
        thread.join()
        backward(outputs[0])

    assert "threads" in counted(in_a_thread).reason
    assert "no matrix product" in counted(lambda: inputs + 1).reason
    recurrent = nn.LSTM(8, 8)
    whole = counted(lambda: backward(nn.Linear(8, 8)(recurrent(inputs[:, None])[0])))
    assert whole.by_precision
    assert any("rnn" in name for name in whole.unknown)


def test_replayed_cuda_graph_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda _: None)
    model = perceptron()

    def step() -> None:
        backward(model(torch.ones(5, 8)))
        torch.cuda.CUDAGraph.replay(None)  # type: ignore[arg-type]  # without a GPU there are no graphs

    assert "CUDA graph" in counted(step).reason
    assert flops(lambda: model(torch.ones(5, 8)))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_compiled_code_is_not_counted() -> None:
    model = perceptron()
    compiled = torch.compile(model, backend="eager")
    assert "torch.compile" in counted(lambda: backward(compiled(torch.ones(5, 8)))).reason
    assert "torch.compile" in counted(lambda: model(torch.ones(5, 8))).reason
    scripted = torch.jit.script(nn.Sequential(nn.Linear(8, 4)))
    sys.modules["torch._dynamo.utils"].counters.clear()
    assert "TorchScript" in counted(lambda: scripted(torch.ones(5, 8)), scripted).reason


def test_missing_private_parts_of_pytorch_do_not_stop_training(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = perceptron(), torch.ones(5, 8)
    monkeypatch.setattr(torch._C, "_current_graph_task_id", None)
    assert {"aten.addmm", "aten.mm"} <= set(counted(lambda: backward(model(inputs))).reason.replace(",", "").split())
    monkeypatch.setattr(torch.backends.cuda, "matmul", None)
    assert "cannot be observed" in counted(lambda: backward(model(inputs))).reason


def test_failed_step_leaves_no_mode_and_no_result() -> None:
    counter = FlopCounter(perceptron())
    with pytest.raises(ZeroDivisionError), counter:
        1 / 0  # noqa: B018
    assert counter.result is None
    assert _get_current_dispatch_mode_stack() == []


def test_counting_changes_neither_losses_nor_random_numbers() -> None:
    def train(*, count: bool) -> list[torch.Tensor]:
        """Return losses, parameters and the state of the random generator; with `count`, count the second step."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(), nn.Flatten(), nn.Linear(8 * 36, 5))
        optimizer = torch.optim.AdamW(model.parameters())
        counter = FlopCounter(model)
        seen = []

        def step() -> None:
            loss = nn.functional.cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.randint(0, 5, (4,)))
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own
            optimizer.step()
            optimizer.zero_grad()
            seen.append(loss.detach())

        for number in range(4):
            if count and number == 1:
                with counter:
                    step()
            else:
                step()
        return [*seen, *(parameter.detach() for parameter in model.parameters()), torch.get_rng_state()]

    assert all(torch.equal(a, b) for a, b in zip(train(count=False), train(count=True), strict=True))
