"""Implement `ps-cpu`: a parameter server in host memory, where the CPUs update the variables (the parameters)."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import gpudiag
from gpudiag.prediction import transfers
from gpudiag.prediction.cost import Cost
from gpudiag.prediction.paths import HOST
from gpudiag.training.strategies.pytorch_strategy import PytorchStrategy, gather_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import torch
    from torch import nn
    from torch.optim import Optimizer

    from gpudiag.model.benchmarks.prediction import Candidate
    from gpudiag.prediction.situation import Situation

#: Alignment of variables in bytes.
_ALIGNMENT = 256
_PAGE = 4096
#: Bytes that PyTorch's update with momentum and weight decay reads or writes in host memory per byte of parameters.
#: Computing gradient + decay x parameter into new memory takes 5 (two reads; zero, fetch and write the result). Scaling
#: the momentum takes 2, adding to the momentum 3, and updating the parameter 3.
_UPDATE_PASSES = 13
#: Bytes that are read or written per byte of a gradient: to add it to a sum (two reads, one write), or to divide a sum.
_ADD_PASSES, _DIVIDE_PASSES = 3, 2
#: GB/s of host memory per thread of PyTorch's operators while other processes wait. Cores of servers reach 3 to 15 GB/s
#: (`prediction.paths`). For VGG-16's largest variable, 16 threads of two hosts reached 4.4 to 5.6 GB/s each.
_PER_THREAD_GB_PER_S = 5.0


class PsCpu(PytorchStrategy):
    """Copy gradients to shared host memory during backward. In this memory each process updates its own variables.

    Whole variables are distributed over the processes by size. The optimizer's state is in host memory only. After the
    update every process copies all parameters to its device. So per step and device each gradient is copied to the host
    once, and each parameter back once. The update begins when all gradients have arrived. Host memory limits its speed.
    """

    name = "ps-cpu"
    summary = "Parameter server in host memory: gradients go there, the CPUs update, parameters come back."
    list_order, preference_rank = 40, 60
    one_node = True
    least_devices = 2
    locks_memory = True
    scales_losses = False
    through_host = True
    backend = None

    def wrap(self, model: nn.Module) -> nn.Module:
        """Set up the shared memory, and copy the parameters of rank 0 into it."""
        import torch
        from torch import distributed as dist

        from gpudiag.training.strategies.central_optimizer import owners

        self.check_model(model)
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        self._control = dist.new_group(backend="gloo")
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), src=0)
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        owner = owners([parameter.numel() for parameter in self._parameters], self._world)
        self._owned = [index for index, rank in enumerate(owner) if rank == self._rank]
        # Variables are placed in the order of their owners, so that each process's variables are contiguous.
        offsets, end = {}, 0
        for index in sorted(range(len(owner)), key=owner.__getitem__):
            offsets[index] = end
            end += math.ceil(_bytes_of(self._parameters[index]) / _ALIGNMENT) * _ALIGNMENT
        self._share_memory(offsets, math.ceil(end / _PAGE) * _PAGE)
        if self._rank == 0:
            for master, parameter in zip(self._masters, self._parameters, strict=True):
                master.copy_(parameter.detach())
        self._barrier()
        self._segment.close()  # the mapping remains
        make_stream: Any = torch.cuda.Stream
        self._stream = make_stream(self.device) if self.device.type == "cuda" else None
        self._sending = True
        for index, parameter in enumerate(self._parameters):
            hooked: Any = parameter  # the method has no types
            hooked.register_post_accumulate_grad_hook(self._sender(index))
        self.exchanged_bytes = [_bytes_of(parameter) for parameter in reversed(self._parameters)]
        return model

    def _share_memory(self, offsets: dict[int, int], area: int) -> None:
        """Share an area of gradients per rank, and an area of master parameters (the copies that are updated).

        `area` is the size of each area in bytes. `offsets` contains the offset of each parameter within an area.
        """
        import torch

        from gpudiag.training.strategies.shared_host.segment import Pinned, Segment

        self._segment = Segment(area * (self._world + 1), self._rank, self._gather)
        # Each rank allocates its own gradients; rank 0 also allocates the master parameters.
        reserved = [self._rank, self._world] if self._rank == 0 else [self._rank]
        self._segment.reserve([(number * area, area) for number in reserved])
        memory = torch.frombuffer(self._segment.memory, dtype=torch.uint8)
        base = self._segment.address
        self._pinned = [Pinned(base + number * area, area, self.device) for number in (self._rank, self._world)]

        def views(number: int) -> list[torch.Tensor]:
            """Return a tensor for each parameter within area `number`, with the parameter's shape and strides."""
            tensors = []
            for index, parameter in enumerate(self._parameters):
                begin = number * area + offsets[index]
                flat = memory[begin : begin + _bytes_of(parameter)].view(parameter.dtype)
                tensors.append(flat.as_strided(parameter.shape, parameter.stride()))
            return tensors

        self._gradients = [views(rank) for rank in range(self._world)]
        self._masters = views(self._world)

    def optimizer(self, model: nn.Module, make: Callable[[Iterable[nn.Parameter]], Optimizer]) -> Optimizer:
        """Make an optimizer that updates this process's variables on the host, and copies all variables to devices."""
        from torch import nn

        from gpudiag.training.strategies.central_optimizer import CentralOptimizer

        self._owned_masters = [nn.Parameter(self._masters[index]) for index in self._owned]
        return CentralOptimizer(model.parameters(), make, self._owned_masters, self._sum, self._fetch)

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Keep gradients on the device within the block."""
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
            self._barrier()

    def release(self) -> None:
        """Unpin the shared memory."""
        for pinned in getattr(self, "_pinned", []):
            pinned.close()

    def _sender(self, index: int) -> Callable[[torch.Tensor], None]:
        """Return a hook that copies a parameter's gradient to shared memory when backward has computed it."""
        import torch

        def send(parameter: torch.Tensor) -> None:
            if not self._sending or parameter.grad is None:  # see `accumulating`
                return
            with gpudiag.range("exchange"):
                target = self._gradients[self._rank][index]
                if self._stream is None:
                    target.copy_(parameter.grad)
                    return
                self._stream.wait_stream(torch.cuda.current_stream(self.device))
                with torch.cuda.stream(self._stream):
                    target.copy_(parameter.grad, non_blocking=True)
                parameter.grad.record_stream(self._stream)  # keep the memory until it is copied

        return send

    def _sum(self) -> None:
        """Average the gradients of this process's variables over all processes."""
        with gpudiag.range("exchange"):
            for master, index in zip(self._owned_masters, self._owned, strict=True):
                total = self._gradients[0][index]
                for rank in range(1, self._world):
                    total.add_(self._gradients[rank][index])
                master.grad = total.div_(self._world)

    def _fetch(self) -> None:
        with gpudiag.range("exchange"):
            self._barrier()
            for parameter, master in zip(self._parameters, self._masters, strict=True):
                parameter.copy_(master, non_blocking=True)
            # No barrier is needed after these copies. Masters change only when all ranks have sent new gradients, and a
            # rank sends new gradients after these copies.

    def _barrier(self) -> None:
        from torch import distributed as dist

        dist.barrier(group=self._control)

    def _gather(self, value: Any) -> list[Any]:
        return gather_objects(value, self._control)

    @classmethod
    def cost(cls, now: Situation, candidate: Candidate) -> Cost:
        """Return the cost of copying gradients to the host, of updates by the CPUs, and of copying parameters back.

        `now` has the model, the number of devices and the machine's rates in GB/s (1e6 bytes per ms). `candidate.wire`
        is the number of communicated bytes per byte of gradients.
        """
        sizes, total, wire = now.model.sizes, now.model.total_bytes, candidate.wire
        owners = [HOST] * len(sizes)
        # `run` returns the end of each copy; `exposed_after` returns the ms from the end of compute to the last end.
        deliveries = transfers.run(transfers.deliver(now.paths, sizes, owners, now.ready_ms, wire))
        exposed_push_ms = transfers.exposed_after(deliveries, now.compute.backward_ms)
        pull_ms = transfers.exposed_after(transfers.run(transfers.fetch(now.paths, sizes, owners, wire)), 0.0)
        passes = _ADD_PASSES * (now.devices - 1) + _DIVIDE_PASSES + _UPDATE_PASSES
        # All processes wait for the process that owns the most bytes, which uses only its own threads.
        homes = transfers.owners_by_size(sizes, now.devices)
        largest = max(sum(s for s, home in zip(sizes, homes, strict=True) if home == rank) for rank in set(homes))
        memory = now.paths.host_memory()
        threads = (now.facts.host.usable_cpus or now.facts.host.cores or 10) / now.devices  # 10: an assumption
        update_ms = passes * max(total / memory, largest / min(memory, threads * _PER_THREAD_GB_PER_S)) / 1e6
        # Duration of the copies to the host alone, as if all gradients were ready at once.
        push_ms = transfers.exposed_after(
            transfers.run(transfers.deliver(now.paths, sizes, owners, [0.0] * len(sizes), wire)), 0.0
        )
        added_ms = exposed_push_ms + update_ms + pull_ms - now.compute.update_ms
        rate = now.paths.all_rate("host_to_device") if now.on_gpu else now.paths.host_memory()
        return Cost(
            exposed_ms=max(0.0, added_ms),
            exchange_ms=push_ms + update_ms + pull_ms,
            reason=f"{total / 1e6:.0f} MB of parameters come from the host at {rate:.3g} GB/s each step "
            f"({pull_ms:.1f} ms), after the CPUs have updated them ({update_ms:.1f} ms)",
        )


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
