"""What a strategy does in a training process, and when the training loop asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch
    from torch import nn
    from torch.optim import Optimizer


class Strategy:
    """How the processes of a job keep their models the same. This base class exchanges nothing.

    The training loop asks in this order, and marks `forward` and `backward` itself:

        strategy.open()                                    once
        model = strategy.wrap(model)                       once; the model is on its device already
        optimizer = strategy.optimizer(model, make)        once
        loss = model(batch); loss.backward()               each step; a wrapped model may exchange in here
        strategy.exchange(model)                           each step: what has to happen between backward and update
        optimizer.step()                                   each step; a central optimizer may fetch parameters in here
        strategy.close()                                   once, in any case

    Wherever gradients or parameters travel, a strategy opens `gpudiag.range("exchange")`.

    Several strategies may be open in one process at the same time (`gpudiag recommend` measures them by turns). So each
    exchanges over `self.group` and never over the default process group, unless the two are the same.

    Args:
        device: what this process trains on.
    """

    #: Backend of the default process group. With gloo there is no communication unless someone asks for it.
    backend = "gloo"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        #: Bytes of each piece exchanged in the last step, in order of exchange; empty where unknown.
        self.exchanged_bytes: list[int] = []
        #: The group over which this strategy exchanges; None for the default one. Set by `open`.
        self.group: Any = None

    def open(self) -> None:
        """Join the other processes. Raises RuntimeError or DistError when they cannot be reached.

        Where the processes have met already, this makes a group beside the others; all processes must do so at once.
        """
        import torch.distributed as dist

        on_gpu = self.backend == "nccl"
        if dist.is_initialized():
            self.group = dist.new_group(backend=self.backend, device_id=self.device if on_gpu else None)
            return
        dist.init_process_group(self.backend, device_id=self.device if on_gpu else None)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model to train in place of `model`."""
        return model

    def optimizer(self, model: nn.Module, make: Callable[[Iterable[nn.Parameter]], Optimizer]) -> Optimizer:
        """The optimizer of the wrapped model; `make` is the workload's own choice."""
        return make(model.parameters())

    def exchange(self, model: nn.Module) -> None:
        """Bring gradients together after backward, where the wrapped model has not done so."""

    def close(self) -> None:
        """Leave the other processes; only this strategy's group where it was opened beside others."""
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group(self.group)
