"""Implement faults within a step: extra compute, synchronization, slow copies, tiny kernels, slow communication."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from gpudiag.training.jobs.faults.fault import Fault
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer

#: Sides of the matrices of `ExtraCompute`. A product takes 0.2 ms on a fast GPU in bf16, and about 1 ms on a CPU core.
_GPU_SIDE, _CPU_SIDE = 4096, 384
# The amount of work of a fault is chosen by timing a trial. The following are sizes and repetitions of trials.
_PRODUCTS = 20
_REPEATS = 5
_TRIAL_BYTES = 64 << 20
_TRIAL_COPIES = 50
#: Number of floats of a small tensor.
_SMALL_ELEMENTS = 64
#: Width and batch size of the layers of `TinyKernels`, and number of layers of the trial.
_TINY_WIDTH, _TINY_BATCH, _TRIAL_LAYERS = 32, 8, 100
_TRIAL_PARAMETERS, _UPDATES = 50, 3
_TRIAL_MESSAGE_BYTES = 32 << 20
#: Maximum number of extra bytes per byte of gradients, because the extra data of one bucket must fit into memory.
_MOST_EXTRA = 200.0


class CallFault(Fault[DdpTrainer]):
    """A fault that calls a function at one point of each step."""

    #: The trainer's attribute with the function to call: before forward, before the update, or after the update.
    point: ClassVar[Literal["extra", "before_update", "after"]]
    #: Function to call on unaffected ranks, and in steps without the fault; None to call nothing.
    without_fault: Callable[[], None] | None = None

    @abstractmethod
    def with_fault(self) -> None:
        """Run the fault's code in one step."""

    def switch(self, *, on: bool) -> None:
        """Set the function that the trainer calls."""
        setattr(self.trainer, self.point, self.with_fault if on and self.affected else self.without_fault)

    def rest(self) -> None:
        """Call nothing."""
        setattr(self.trainer, self.point, None)


class ExtraCompute(CallFault):
    """Before forward, compute matrix products for `amount_ms`."""

    point = "extra"

    def prepare(self) -> None:
        """Time a product, and choose the number of products per step."""
        on_gpu = self.trainer.device.type == "cuda"
        side, dtype = (_GPU_SIDE, torch.bfloat16) if on_gpu else (_CPU_SIDE, torch.float32)
        self._matrix = torch.randn(side, side, device=self.trainer.device, dtype=dtype)
        self._product = torch.empty_like(self._matrix)
        each_ms = self.trainer.milliseconds_of(self._multiply, repeats=_PRODUCTS)
        self._count = max(1, round(self.amount_ms / each_ms))

    def with_fault(self) -> None:
        """Multiply."""
        for _ in range(self._count):
            self._multiply()

    def _multiply(self) -> None:
        torch.mm(self._matrix, self._matrix, out=self._product)


class PageableCopies(CallFault):
    """Before forward, copy a tensor from pageable memory to the device for `amount_ms`."""

    point = "extra"

    def prepare(self) -> None:
        """Time a large copy, and choose the size of the tensor."""
        self._pageable = torch.zeros(_TRIAL_BYTES, dtype=torch.uint8)
        trial_ms = self.trainer.milliseconds_of(self.with_fault, repeats=_REPEATS)
        self._pageable = torch.zeros(max(1, int(_TRIAL_BYTES * self.amount_ms / trial_ms)), dtype=torch.uint8)

    def with_fault(self) -> None:
        """Copy."""
        self._pageable.to(self.trainer.device)


class SmallCopies(CallFault):
    """Before forward, copy small tensors to the device one by one for `amount_ms`."""

    point = "extra"

    def prepare(self) -> None:
        """Time some small copies, and choose the number of copies per step."""
        self.tensors = [torch.zeros(_SMALL_ELEMENTS) for _ in range(_TRIAL_COPIES)]
        each_ms = self.trainer.milliseconds_of(self.with_fault, repeats=_REPEATS) / _TRIAL_COPIES
        self.tensors = [torch.zeros(_SMALL_ELEMENTS) for _ in range(max(1, round(self.amount_ms / each_ms)))]

    def with_fault(self) -> None:
        """Copy."""
        for tensor in self.tensors:
            tensor.to(self.trainer.device)


class TinyKernels(CallFault):
    """Before forward, run a network of small layers, whose kernels the host launches in `amount_ms`.

    Without the fault the same kernels are launched as one CUDA graph, so only the cost of launching differs.
    """

    point = "extra"

    def prepare(self) -> None:
        """Time the launch of a layer, choose the number of layers, and capture the graph."""
        self._input = torch.randn(_TINY_BATCH, _TINY_WIDTH, device=self.trainer.device)
        self._network = self._layers(_TRIAL_LAYERS)
        each_ms = self.trainer.milliseconds_of(self.with_fault, repeats=_REPEATS) / _TRIAL_LAYERS
        self._network = self._layers(max(1, round(self.amount_ms / each_ms)))
        self.without_fault = captured(self.with_fault).replay

    def with_fault(self) -> None:
        """Launch the network layer by layer."""
        with torch.no_grad():
            self._network(self._input)

    def _layers(self, count: int) -> nn.Module:
        layers = (nn.Sequential(nn.Linear(_TINY_WIDTH, _TINY_WIDTH), nn.ReLU()) for _ in range(count))
        return nn.Sequential(*layers).to(self.trainer.device)


class LoopedOptimizer(CallFault):
    """After each update, run Adam with `foreach=False` over small parameters for `amount_ms`.

    Without the fault a fused Adam updates the same parameters.
    """

    point = "after"

    def prepare(self) -> None:
        """Time the update of a parameter, and choose the number of parameters."""
        trial = torch.optim.Adam(self._parameters(_TRIAL_PARAMETERS), foreach=False)
        each_ms = self.trainer.milliseconds_of(trial.step, repeats=_UPDATES) / _TRIAL_PARAMETERS
        parameters = self._parameters(max(1, round(self.amount_ms / each_ms)))
        self._looped = torch.optim.Adam(parameters, foreach=False)
        self._fused = torch.optim.Adam(parameters, fused=True)
        self.without_fault = self._update_at_once

    def with_fault(self) -> None:
        """Update the parameters one by one."""
        self._looped.step()

    def _update_at_once(self) -> None:
        self._fused.step()

    def _parameters(self, count: int) -> list[nn.Parameter]:
        parameters = [nn.Parameter(torch.zeros(_SMALL_ELEMENTS, device=self.trainer.device)) for _ in range(count)]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        return parameters


class EmptiedCache(CallFault):
    """After each update, call `torch.cuda.empty_cache()`. The size of the fault follows from the model's memory."""

    point = "after"

    def with_fault(self) -> None:
        """Return cached memory to the driver."""
        torch.cuda.empty_cache()


class LayerSyncs(Fault[DdpTrainer]):
    """Call `.item()` before and after the forward of each innermost module, as loops that log statistics do.

    The value is already computed, so the fault consists only of synchronization. One `.item()` per step would cost
    almost nothing, because the host soon runs ahead again. With these calls the device waits for each layer's launches.
    """

    def prepare(self) -> None:
        """Make the tensor that `.item()` reads."""
        self._statistic = torch.zeros((), device=self.trainer.device)
        self._handles: list[RemovableHandle] = []

    def switch(self, *, on: bool) -> None:
        """Add the hooks that call `.item()` (on), or remove them (off)."""
        # Remove earlier hooks even if the fault is switched on, because it may be switched on twice in sequence.
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if on and self.affected:
            layers = [module for module in self.trainer.model.modules() if next(module.children(), None) is None]
            self._handles = [layer.register_forward_pre_hook(self._read) for layer in layers]
            self._handles += [layer.register_forward_hook(self._read) for layer in layers]

    def _read(self, *_: Any) -> None:
        self._statistic.item()


class BetweenLayers(Fault[DdpTrainer]):
    """Read the largest value of each block's output immediately, as loops that check for overflow do.

    Without the fault the value is computed but not read, so the fault consists only of synchronization.
    """

    def prepare(self) -> None:
        """Begin without hooks."""
        self._handles: list[RemovableHandle] = []
        self._reading = False

    def switch(self, *, on: bool) -> None:
        """Compute and read the values (on), or only compute them (off)."""
        if not self._handles:
            # Blocks are the children of the model's children. A child without children is a block itself.
            blocks = [block for child in self.trainer.model.children() for block in (list(child.children()) or [child])]
            self._handles = [block.register_forward_hook(self._look) for block in blocks]
        self._reading = on and self.affected

    def rest(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _look(self, _module: Any, _inputs: Any, output: torch.Tensor) -> None:
        largest = output.detach().abs().max()
        if self._reading:
            largest.item()


class SlowCommunication(Fault[DdpTrainer]):
    """Make the communication of gradients `amount_ms` longer (on), or do not communicate (off)."""

    def prepare(self) -> None:
        """Time a large all-reduce, and choose the number of extra bytes per byte of gradients."""
        trial = torch.zeros(_TRIAL_MESSAGE_BYTES, dtype=torch.uint8, device=self.trainer.device)
        trial_ms = self.trainer.milliseconds_of(lambda: dist.all_reduce(trial), repeats=_REPEATS)
        # `plain_ms`: estimated time of an all-reduce of all gradients.
        plain_ms = self.trainer.agree(trial_ms) * self.trainer.gradient_bytes / _TRIAL_MESSAGE_BYTES
        self._extra = min(self.amount_ms / plain_ms, _MOST_EXTRA)

    def switch(self, *, on: bool) -> None:
        """Communicate slowly (on), or do not communicate (off)."""
        self.trainer.communication.extra = self._extra
        self.trainer.communication.mode = "slow" if on else self.trainer.without_communication

    def rest(self) -> None:
        """Communicate as PyTorch does."""
        self.trainer.communication.mode = "plain"
        self.trainer.communication.release()


class WholeCommunication(Fault[DdpTrainer]):
    """Communicate as PyTorch does (on), or do not communicate (off).

    The difference is the cost of communication in this launch, which may use a slow transport.
    """

    def switch(self, *, on: bool) -> None:
        """Communicate as PyTorch does (on), or do not communicate (off)."""
        self.trainer.communication.mode = "plain" if on else self.trainer.without_communication

    def rest(self) -> None:
        """Communicate as PyTorch does."""
        self.trainer.communication.mode = "plain"


class SyncBatchNorms(Fault[DdpTrainer]):
    """Replace each batch norm by a `SyncBatchNorm` with the same parameters, which communicates statistics."""

    def prepare(self) -> None:
        """Convert the batch norms."""
        convert: Any = nn.SyncBatchNorm.convert_sync_batchnorm
        self._norms = [
            (parent, name, child, convert(child))
            for parent in self.trainer.model.modules()
            for name, child in parent.named_children()
            if isinstance(child, _BatchNorm)
        ]

    def switch(self, *, on: bool) -> None:
        """Insert the synchronized batch norms (on), or the usual batch norms (off)."""
        for parent, name, usual, synchronized in self._norms:
            setattr(parent, name, synchronized if on else usual)


def captured(launch: Callable[[], None], *, warm_up: int = 1) -> torch.cuda.CUDAGraph:
    """Capture the work of `launch` as a CUDA graph, after `warm_up` calls on a side stream, as PyTorch requires."""
    side: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # untyped in torch
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm_up):
            launch()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # Other threads of the process (NCCL's watchdog) may call CUDA during the capture.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        launch()
    return graph
