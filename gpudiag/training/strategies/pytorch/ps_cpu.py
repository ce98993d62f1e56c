"""`ps-cpu`: a parameter server in host memory: variables and optimizer live there, and the CPUs update them."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import gpudiag
from gpudiag.prediction import transfers
from gpudiag.prediction.cost import Cost
from gpudiag.prediction.paths import HOST
from gpudiag.training.strategies.pytorch_strategy import PytorchStrategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    import torch
    from torch import nn
    from torch.optim import Optimizer

    from gpudiag.model.benchmarks.prediction import Candidate
    from gpudiag.prediction.situation import Situation

#: Variables begin at multiples of this many bytes.
_ALIGNMENT = 256
_PAGE = 4096
#: Passes over host memory per byte of parameters of an update with momentum and weight decay by PyTorch's operators:
#: gradient + decay x parameter into new memory (two read, one written after it was zeroed and fetched), momentum scaled
#: (2) and added to (3), parameter (3).
_UPDATE_PASSES = 13
#: Passes per byte to add one more gradient to a sum (two are read, one is written), and to divide the sum.
_ADD_PASSES, _DIVIDE_PASSES = 3, 2
#: GB/s of host memory that one thread of PyTorch's operators reads and writes while other processes wait: cores of
#: servers sustain 3 to 15 (`paths`); VGG-16's largest variable, on 16 threads of two hosts, 4.4 to 5.6.
_PER_THREAD = 5.0


class PsCpu(PytorchStrategy):
    """Gradients go to memory that all processes share during backward; there each process sums and updates its part.

    The variables, whole ones, are spread over the processes by size; the optimizer's state is in host memory only. Then
    every process copies all parameters to its device. Per step and device each gradient travels to the host once, and
    each parameter back once; the update runs at the speed of host memory, after the last gradient has come.
    """

    name = "ps-cpu"
    summary = "Parameter server in host memory: gradients go there, the CPUs update, parameters come back."
    listed, special = 40, 60
    one_node = True
    least_devices = 2
    locks_memory = True
    scales_losses = False
    through_host = True
    backend = None

    def wrap(self, model: nn.Module) -> nn.Module:
        """Share the memory and put the parameters of rank 0 there."""
        import torch
        from torch import distributed as dist

        from gpudiag.training.strategies.central_optimizer import owners
        from gpudiag.training.strategies.shared_host.pinning import Pinned
        from gpudiag.training.strategies.shared_host.segment import Segment

        self.check_model(model)
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        self._control = dist.new_group(backend="gloo")
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), src=0)
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        owner = owners([parameter.numel() for parameter in self._parameters], self._world)
        # By owner, so that each process's part lies together.
        order = sorted(range(len(owner)), key=lambda index: owner[index])
        places, end = {}, 0
        for index in order:
            places[index] = end
            size = self._parameters[index].numel() * self._parameters[index].element_size()
            end += math.ceil(size / _ALIGNMENT) * _ALIGNMENT
        area = math.ceil(end / _PAGE) * _PAGE
        self._segment = Segment(area * (self._world + 1), self._rank, self._gather)
        mine = [(self._rank * area, area)] + ([(self._world * area, area)] if self._rank == 0 else [])
        self._segment.reserve(mine)
        memory = torch.frombuffer(self._segment.memory, dtype=torch.uint8)
        base = self._segment.address
        self._pinned = [Pinned(base + number * area, area, self.device) for number in (self._rank, self._world)]

        def view(number: int, index: int) -> torch.Tensor:
            parameter = self._parameters[index]
            begin = number * area + places[index]
            part = memory[begin : begin + parameter.numel() * parameter.element_size()].view(parameter.dtype)
            return part.as_strided(parameter.shape, parameter.stride())

        everyone = range(len(self._parameters))
        self._gradients = [[view(rank, index) for index in everyone] for rank in range(self._world)]
        self._masters = [view(self._world, index) for index in everyone]
        self._owned = [index for index in everyone if owner[index] == self._rank]
        if self._rank == 0:
            for master, parameter in zip(self._masters, self._parameters, strict=True):
                master.copy_(parameter.detach())
        self._wait_for_all()
        self._segment.close()
        make_stream: Any = torch.cuda.Stream
        self._stream = make_stream(self.device) if self.device.type == "cuda" else None
        self._sending = True
        for index, parameter in enumerate(self._parameters):
            hooked: Any = parameter  # the method has no types
            hooked.register_post_accumulate_grad_hook(self._sender(index))
        self.exchanged_bytes = [p.numel() * p.element_size() for p in reversed(self._parameters)]
        return model

    def optimizer(self, model: nn.Module, make: Callable[[Iterable[nn.Parameter]], Optimizer]) -> Optimizer:
        """Updates this process's part in host memory, then fetches all."""
        from torch import nn

        from gpudiag.training.strategies.central_optimizer import CentralOptimizer

        self._owned_masters = [nn.Parameter(self._masters[index]) for index in self._owned]
        return CentralOptimizer(model.parameters(), make, self._owned_masters, self._sum, self._fetch)

    def accumulating(self) -> AbstractContextManager[object]:
        """Gradients stay on the device."""
        return self._pausing()

    @contextmanager
    def _pausing(self) -> Iterator[None]:
        self._sending = False
        try:
            yield
        finally:
            self._sending = True

    def exchange(self, model: nn.Module) -> None:
        """Wait until every process's gradients are in host memory."""
        self.check_gradients(model)
        with gpudiag.range("exchange"):
            if self._stream is not None:
                self._stream.synchronize()
            self._wait_for_all()

    def release(self) -> None:
        """Let go of the memory."""
        for pinned in getattr(self, "_pinned", []):
            pinned.close()

    def _sender(self, index: int) -> Callable[[torch.Tensor], None]:
        import torch

        def send(parameter: torch.Tensor) -> None:
            if not self._sending or parameter.grad is None:
                return
            with gpudiag.range("exchange"):
                target = self._gradients[self._rank][index]
                if self._stream is None:
                    target.copy_(parameter.grad)
                    return
                self._stream.wait_stream(torch.cuda.current_stream(self.device))
                with torch.cuda.stream(self._stream):
                    target.copy_(parameter.grad, non_blocking=True)
                parameter.grad.record_stream(self._stream)

        return send

    def _sum(self) -> None:
        """The mean over the processes of the gradients that this one has the variables of."""
        with gpudiag.range("exchange"):
            for master, index in zip(self._owned_masters, self._owned, strict=True):
                total = self._gradients[0][index]
                for rank in range(1, self._world):
                    total.add_(self._gradients[rank][index])
                master.grad = total.div_(self._world)

    def _fetch(self) -> None:
        with gpudiag.range("exchange"):
            self._wait_for_all()
            for parameter, master in zip(self._parameters, self._masters, strict=True):
                parameter.copy_(master, non_blocking=True)
            # The next update waits for the next gradients of all, which wait in stream order for these copies.

    def _wait_for_all(self) -> None:
        from torch import distributed as dist

        dist.barrier(group=self._control)

    def _gather(self, mine: Any) -> list[Any]:
        from torch import distributed as dist

        theirs: list[Any] = [None] * self._world
        dist.all_gather_object(theirs, mine, group=self._control)
        return theirs

    @classmethod
    def cost(cls, now: Situation, candidate: Candidate) -> Cost:
        """Gradients go to the host while backward runs; it adds and updates; then parameters come back."""
        sizes, wire = now.model.sizes, candidate.wire
        owners = [HOST] * len(sizes)
        pushed = transfers.run(transfers.deliver(now.paths, sizes, owners, now.ready_ms, wire))
        push = transfers.exposed_after(pushed, now.compute.backward_ms)
        pull = transfers.exposed_after(transfers.run(transfers.fetch(now.paths, sizes, owners, wire)), 0.0)
        passes = _ADD_PASSES * (now.devices - 1) + _DIVIDE_PASSES + _UPDATE_PASSES
        # Each process updates what it owns with its own threads; the one with most is the one that all wait for.
        homes = transfers.owners_by_size(sizes, now.devices)
        largest = max(sum(s for s, home in zip(sizes, homes, strict=True) if home == rank) for rank in set(homes))
        memory = now.paths.host_memory()
        threads = (now.facts.host.usable_cpus or now.facts.host.cores or 10) / now.devices
        host = passes * max(now.model.total_bytes / memory, largest / min(memory, threads * _PER_THREAD)) / 1e6
        alone = transfers.exposed_after(
            transfers.run(transfers.deliver(now.paths, sizes, owners, [0.0] * len(sizes), wire)), 0.0
        )
        exposed = push + host + pull - now.compute.update_ms
        megabytes = now.model.total_bytes / 1e6
        rate = now.paths.all_rate("host_to_device") if now.on_gpu else now.paths.host_memory()
        return Cost(
            exposed_ms=max(0.0, exposed),
            exchange_ms=alone + host + pull,
            reason=f"{megabytes:.0f} MB of parameters come from the host at {rate:.3g} GB/s each step ({pull:.1f} ms), "
            f"after the CPUs have updated them ({host:.1f} ms)",
        )


STRATEGY = PsCpu
