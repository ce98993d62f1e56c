"""What a PyTorch strategy does in a training process, and when the training loop asks it. PyTorch is imported then."""

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
    from torch import nn
    from torch.optim import Optimizer

    from gpudiag.model.benchmarks.prediction import Candidate

    #: Begins an all-reduce, the one of this number among those under way; what it returns can be waited for.
    StartAllReduce = Callable[[torch.Tensor, int], Any]

#: Names in a message; the rest is counted.
_NAMED = 3


class PytorchStrategy(Strategy):
    """How the processes of a PyTorch job keep their models the same. This base class exchanges nothing.

    The training loop asks in this order, and marks `forward` and `backward` itself:

        strategy.open()                                    once
        model = strategy.wrap(model)                       once; the model is on its device already
        optimizer = strategy.optimizer(model, make)        once
        with strategy.accumulating():                      each batch of a step but its last: forward and backward
            loss = model(batch); loss.backward()
        loss = model(batch); loss.backward()               each step; a wrapped model may exchange in here
        strategy.exchange(model)                           each step: what has to happen between backward and update
        optimizer.step()                                   each step; a central optimizer may fetch parameters in here
        strategy.close()                                   once, in any case; the model is gone by then

    Wherever gradients or parameters travel, a strategy opens `gpudiag.range("exchange")`.

    Args:
        device: what this process trains on.
        options: how to exchange.
        devices: how many devices this process drives, where it is one process for all; `device` is the first.
    """

    framework: ClassVar[str] = "pytorch"
    takes: ClassVar[tuple[str, ...]] = ("accumulate",)
    #: Backend of the default process group: `nccl`, `gloo`, or None for NCCL on GPUs and gloo on CPUs. With gloo there
    #: is no communication unless someone asks for it.
    backend: ClassVar[str | None] = "gloo"

    def __init__(self, device: torch.device, options: CommunicationOptions | None = None, devices: int = 1) -> None:
        self.device = device
        self.devices = devices
        self.options = options or CommunicationOptions()
        #: Bytes of each piece exchanged in the last step, in order of exchange; empty where unknown.
        self.exchanged_bytes: list[int] = []
        self._checked = False

    @classmethod
    def all_reduce(cls, device: torch.device, candidate: Candidate) -> tuple[StartAllReduce, Callable[[], None] | None]:
        """What begins an all-reduce over its `transport`, and what lets go of it; for measuring it by itself.

        The default process group is one of `backend`. All processes call this at once.
        """
        import torch.distributed as dist

        group = dist.group.WORLD
        return lambda tensor, _: dist.all_reduce(tensor, group=group, async_op=True), None

    def open(self) -> None:
        """Join the other processes, unless this one has. Raises RuntimeError or DistError if they cannot be reached."""
        import torch.distributed as dist

        if dist.is_initialized():
            return
        backend = self.backend or ("nccl" if self.device.type == "cuda" else "gloo")
        dist.init_process_group(backend, device_id=self.device if backend == "nccl" else None)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model to train in place of `model`. Raises UsageError if its gradients cannot be exchanged this way."""
        return model

    def optimizer(self, model: nn.Module, make: Callable[[Iterable[nn.Parameter]], Optimizer]) -> Optimizer:
        """The optimizer of the wrapped model; `make` is the workload's own choice."""
        return make(model.parameters())

    def accumulating(self) -> AbstractContextManager[object]:
        """Around forward and backward of a batch whose gradients are not exchanged, since others are added to them."""
        return nullcontext()

    def exchange(self, model: nn.Module) -> None:
        """Bring gradients together after backward, where the wrapped model has not done so.

        Raises:
            UsageError: after the first step, if a parameter that is to be trained got no gradient.
        """

    def release(self) -> None:
        """Let go of what this strategy holds beside the process group; `close` does so first. May be called again."""

    def close(self) -> None:
        """Let go of everything and leave the other processes.

        The wrapped model has to be gone. A reducer of DDP's that outlives its process group ends that group's threads,
        waiting for them with the interpreter's lock held; one of gloo's that still lets go of an all-reduce wants that
        lock, and both wait forever (PyTorch 2.13): on two busy cores 9 of 81 jobs, of 321 whose models went first none.
        What compiled a model holds it in a circle until garbage is collected.
        """
        import torch.distributed as dist

        self.release()
        gc.collect()
        if dist.is_initialized():
            dist.destroy_process_group()

    def check_model(self, model: nn.Module) -> None:
        """Refuse a model whose gradients are not dense real numbers. Raises UsageError."""
        sparse = [name for name, module in model.named_modules() if getattr(module, "sparse", False) is True]
        if sparse:
            raise UsageError(
                f"the gradients of {_some(sparse)} are sparse, which cannot be exchanged this way",
                "Make the embeddings with sparse=False.",
            )
        odd = [
            name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.is_complex()
        ]
        if odd:
            raise UsageError(
                f"{_some(odd)}: complex parameters, whose gradients cannot be exchanged this way",
                "Keep real and imaginary parts as two parameters (torch.view_as_real).",
            )
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise UsageError("the model has no parameter to train", "Set requires_grad on what is to be trained.")

    def check_gradients(self, model: nn.Module) -> None:
        """After the first backward: every trained parameter must have a gradient. Raises UsageError.

        A parameter that forward does not use would leave the other ranks waiting for it in the next step.
        """
        if self._checked:
            return
        self._checked = True
        unused = [
            name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None
        ]
        if unused:
            raise UsageError(
                f"{_some(unused)} got no gradient: forward does not use every parameter that is to be trained",
                "Call requires_grad_(False) on what is not used, or leave it out of the model.",
            )


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
