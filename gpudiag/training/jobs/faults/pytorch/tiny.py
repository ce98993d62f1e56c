"""Tiny kernels: a stack of small layers, each of which takes longer to launch than to run."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from gpudiag.training.jobs.faults.fault import Fault
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer

_WIDTH = 32
_BATCH = 8
_TRIAL_LAYERS = 100
_REPEATS = 5


class TinyKernels(Fault[DdpTrainer]):
    """A frozen network of as many layers as take the host `amount_ms` to launch.

    With the fault it is launched layer by layer, without it as one CUDA graph: the same kernels on the same data, so
    that the difference is the launching.
    """

    def __init__(self, trainer: DdpTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        self._input = torch.randn(_BATCH, _WIDTH, device=trainer.device)
        self._network = _network(_TRIAL_LAYERS, trainer.device)
        each_ms = trainer.milliseconds_of(self._launch, repeats=_REPEATS) / _TRIAL_LAYERS
        self._network = _network(max(1, round(amount_ms / each_ms)), trainer.device)
        self._graph = _captured(self._launch)

    def switch(self, *, on: bool) -> None:
        """Launch layer by layer, or as a graph."""
        self.trainer.extra = self._launch if on and self.mine else self._graph.replay

    def rest(self) -> None:
        """Take both out of the step."""
        self.trainer.extra = None

    def _launch(self) -> None:
        with torch.no_grad():
            self._network(self._input)


def _network(layers: int, device: torch.device) -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.ReLU()) for _ in range(layers))).to(device)


def _captured(launch: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """The work of `launch` as a CUDA graph, warmed up on a stream of its own as PyTorch asks."""
    beside: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        launch()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    # Other threads of the process (NCCL's watchdog) go on calling CUDA meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        launch()
    return graph
