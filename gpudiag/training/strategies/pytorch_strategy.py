"""Define the interface of PyTorch strategies. Only methods that training processes call import PyTorch."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from gpudiag.errors import UsageError
from gpudiag.model.job import CommunicationOptions
from gpudiag.training.strategies.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.optim import Optimizer

    from gpudiag.model.benchmarks.prediction import Candidate

    #: Function that starts an all-reduce and returns an object with `wait()`. The number identifies concurrent calls.
    StartAllReduce = Callable[[torch.Tensor, int], Any]

#: Maximum number of parameter names in a message. Further names are only counted.
_SHOWN_NAMES = 3


class PytorchStrategy(Strategy):
    """Base class of the strategies under PyTorch. The base class itself does not communicate.

    The training loop calls the methods in this order, and marks the ranges `forward` and `backward` itself:

        strategy.open()                                    once
        model = strategy.wrap(model)                       once; the model is already on its device
        optimizer = strategy.optimizer(model, make)        once
        with strategy.accumulating():                      for each batch of a step except the last
            loss = model(batch); loss.backward()
        loss = model(batch); loss.backward()               for the last batch; a wrapped model may communicate here
        strategy.exchange(model)                           each step, between backward and update
        optimizer.step()                                   each step; a central optimizer may fetch parameters here
        strategy.close()                                   once, also after errors, when the model has been deleted

    A strategy marks the communication of gradients and parameters with `gpudiag.range("exchange")`.

    Args:
        device: the first device of this process.
        options: options for communication.
        devices: number of devices that this process drives.
    """

    framework: ClassVar[str] = "pytorch"
    takes: ClassVar[tuple[str, ...]] = ("accumulate",)
    #: Backend of the default process group: `nccl`, `gloo`, or None for NCCL on GPUs and gloo on CPUs.
    backend: ClassVar[str | None] = "gloo"

    def __init__(self, device: torch.device, options: CommunicationOptions | None = None, devices: int = 1) -> None:
        self.device, self.devices = device, devices
        self.options = options or CommunicationOptions()
        #: Bytes of each message of gradients in the last step, in order of communication; empty if unknown.
        self.exchanged_bytes: list[int] = []
        self._checked = False

    @classmethod
    def all_reduce(cls, device: torch.device, candidate: Candidate) -> tuple[StartAllReduce, Callable[[], None] | None]:
        """Return a function that starts an all-reduce over this strategy's `transport`, and one that closes it.

        Benchmarks use both functions without training. The second one is None if there is nothing to close. The
        default process group must have this strategy's `backend`. All processes must call this method together.
        """
        import torch.distributed as dist

        group = dist.group.WORLD
        return lambda tensor, _: dist.all_reduce(tensor, group=group, async_op=True), None

    def open(self) -> None:
        """Join the process group; raise RuntimeError or DistError if the processes cannot connect."""
        import torch.distributed as dist

        if dist.is_initialized():
            return
        backend = self.backend or ("nccl" if self.device.type == "cuda" else "gloo")
        dist.init_process_group(backend, device_id=self.device if backend == "nccl" else None)

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model to train in place of `model`; raise UsageError if this strategy cannot train `model`."""
        return model

    def optimizer(self, model: nn.Module, make: Callable[[Iterable[nn.Parameter]], Optimizer]) -> Optimizer:
        """Make the optimizer of the wrapped model. `make` returns the workload's optimizer for given parameters."""
        return make(model.parameters())

    def accumulating(self) -> AbstractContextManager[object]:
        """Return a context for forward and backward of a batch whose gradients are accumulated, not communicated."""
        return nullcontext()

    def exchange(self, model: nn.Module) -> None:
        """Communicate gradients after backward, unless the wrapped model has done so.

        Raise UsageError if a trained parameter got no gradient in the first step.
        """

    def release(self) -> None:
        """Release all resources except the process group. `close` also calls this method. Further calls do nothing."""

    def close(self) -> None:
        """Release all resources and destroy the process group. The caller must have deleted the wrapped model.

        If DDP's reducer outlives its process group, it waits for the group's threads while it holds the interpreter
        lock. A thread of gloo that still releases an all-reduce needs this lock, so both wait forever (PyTorch 2.13).
        This deadlock occurred in 9 of 81 jobs on two busy cores, but in none of 321 jobs that deleted the model first.
        Garbage is collected because `torch.compile` keeps a model in a reference cycle.
        """
        import torch.distributed as dist

        self.release()
        gc.collect()
        if dist.is_initialized():
            dist.destroy_process_group()

    def check_model(self, model: nn.Module) -> None:
        """Raise UsageError if gradients of the model are sparse or complex, or if no parameter is trained."""
        sparse = [name for name, module in model.named_modules() if getattr(module, "sparse", False) is True]
        if sparse:
            raise UsageError(
                f"the gradients of {_shortened(sparse)} are sparse, which this strategy cannot communicate",
                "Make the embeddings with sparse=False.",
            )
        complex_names = [
            name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.is_complex()
        ]
        if complex_names:
            raise UsageError(
                f"{_shortened(complex_names)}: complex parameters, whose gradients this strategy cannot communicate",
                "Keep real and imaginary parts as two parameters (torch.view_as_real).",
            )
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise UsageError("the model has no parameter to train", "Set requires_grad on what is to be trained.")

    def check_gradients(self, model: nn.Module) -> None:
        """Raise UsageError if a trained parameter has no gradient after the first backward.

        Otherwise ranks would wait in the next step for the gradient of a parameter that forward does not use.
        """
        if self._checked:
            return
        self._checked = True
        unused = [
            name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None
        ]
        if unused:
            raise UsageError(
                f"{_shortened(unused)} got no gradient: forward does not use every parameter that is to be trained",
                "Call requires_grad_(False) on what is not used, or leave it out of the model.",
            )


def gather_objects(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Return the values of all ranks of the group, in the order of ranks. All ranks must call this function."""
    import torch.distributed as dist

    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def _shortened(names: list[str]) -> str:
    omitted = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {omitted} more" if omitted > 0 else "")
