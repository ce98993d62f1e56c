"""TensorFlow's faults by kind, and the program that puts them in."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gpudiag.model.benchmarks.selftest import SelftestPlan
from gpudiag.training.frameworks.tensorflow.clock import settle
from gpudiag.training.jobs.faults.fault import Fault, LateLoader, NoFault
from gpudiag.training.jobs.faults.job import run_faults
from gpudiag.training.jobs.faults.tensorflow.trainer import DistributedTrainer
from gpudiag.training.session.launched import Launched

#: Square matrices of this side: 0.2 ms on a fast GPU, about 1 ms on one CPU core.
_GPU_SIDE, _CPU_SIDE = 4096, 384
_REPEATS = 20


class ExtraCompute(Fault[DistributedTrainer]):
    """As many matrix products before each step as take `amount_ms`, measured on this device beforehand."""

    def __init__(self, trainer: DistributedTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        with tf.device(trainer.device):
            side = _GPU_SIDE if trainer.device.startswith("GPU:") else _CPU_SIDE
            self._matrix = tf.random.normal((side, side))
        each_ms = trainer.milliseconds_of(lambda: self._multiply(_REPEATS), repeats=1) / _REPEATS
        self._count = max(1, round(amount_ms / each_ms))

    def switch(self, *, on: bool) -> None:
        """Add the products to the step, or take them out."""
        self.trainer.extra = (lambda: self._multiply(self._count)) if on and self.mine else None

    def _multiply(self, count: int) -> None:
        with tf.device(self.trainer.device):
            product = self._matrix
            for _ in range(count):
                product = tf.matmul(self._matrix, product)


class Syncs(Fault[DistributedTrainer]):
    """The loss is read after each step, as in loops that log it, and the device is waited for.

    Functions on a CPU end when their work is done, so that there it costs next to nothing, which is to be found too.
    """

    def switch(self, *, on: bool) -> None:
        """Read each loss from now on, or none."""
        self.trainer.after = self._read if on and self.mine else None

    def _read(self, loss: Any) -> None:
        float(loss.values[0] if hasattr(loss, "values") else loss)
        settle([self.trainer.device])


class WholeCommunication(Fault[DistributedTrainer]):
    """Off, the gradients are not exchanged; on is the clean job. So what its exchange costs can be told."""

    def __init__(self, trainer: DistributedTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        self._communication = trainer.communication_barely()

    def switch(self, *, on: bool) -> None:
        """Exchange, or only wait for each other."""
        self._communication(on)

    def rest(self) -> None:
        """Exchange."""
        self._communication(True)


KINDS: dict[str, type[Fault[DistributedTrainer]]] = {
    "none": NoFault,
    "late-loader": LateLoader,
    "extra-compute": ExtraCompute,
    "syncs": Syncs,
    "whole-exchange": WholeCommunication,
}


def run(plan: SelftestPlan, started: Launched) -> None:
    """Run this process's share of one launch."""
    run_faults(plan, started, DistributedTrainer, KINDS)
