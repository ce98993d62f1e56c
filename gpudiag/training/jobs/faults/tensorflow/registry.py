"""List the faults under TensorFlow by kind, and run the job that injects them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gpudiag.model.benchmarks.selftest import SelftestPlan
from gpudiag.training.frameworks.tensorflow.runtime import synchronize
from gpudiag.training.jobs.faults.fault import Fault, LateLoader, NoFault
from gpudiag.training.jobs.faults.job import run_faults
from gpudiag.training.jobs.faults.tensorflow.trainer import DistributedTrainer
from gpudiag.training.loop.launched import Launched

#: Sides of square matrices. One product takes 0.2 ms on a fast GPU, and about 1 ms on one CPU core.
_GPU_SIDE, _CPU_SIDE = 4096, 384
#: Number of timed products, from which the size of the fault is chosen.
_PRODUCTS = 20


class TensorflowExtraCompute(Fault[DistributedTrainer]):
    """Before each step, compute matrix products for `amount_ms`."""

    def prepare(self) -> None:
        """Time some products, and choose the number of products per step."""
        trainer = self.trainer
        with tf.device(trainer.device):
            side = _GPU_SIDE if trainer.device.startswith("GPU:") else _CPU_SIDE
            self._matrix = tf.random.normal((side, side))
        each_ms = trainer.milliseconds_of(lambda: self._multiply(_PRODUCTS), repeats=1) / _PRODUCTS
        self._count = max(1, round(self.amount_ms / each_ms))

    def switch(self, *, on: bool) -> None:
        """Compute the products before each step (on), or not (off)."""
        self.trainer.extra = (lambda: self._multiply(self._count)) if on and self.affected else None

    def _multiply(self, count: int) -> None:
        with tf.device(self.trainer.device):
            product = self._matrix
            for _ in range(count):
                product = tf.matmul(self._matrix, product)


class StepSyncs(Fault[DistributedTrainer]):
    """Read the loss after each step, as loops that log the loss do, and synchronize the device.

    On a CPU the training step returns when its work is done, so the fault costs almost nothing there.
    """

    def switch(self, *, on: bool) -> None:
        """Read the loss after each step (on), or never (off)."""
        self.trainer.after = self._read if on and self.affected else None

    def _read(self, loss: Any) -> None:
        float(loss.values[0] if hasattr(loss, "values") else loss)
        synchronize([self.trainer.device])


class TensorflowWholeCommunication(Fault[DistributedTrainer]):
    """Train the clean job (on), or the same job without communication (off)."""

    def prepare(self) -> None:
        """Build the step without communication."""
        self._communication = self.trainer.communication_switch()

    def switch(self, *, on: bool) -> None:
        """Communicate gradients (on), or let processes only wait for each other (off)."""
        self._communication(on)

    def rest(self) -> None:
        """Communicate gradients again."""
        self._communication(True)


KINDS: dict[str, type[Fault[DistributedTrainer]]] = {
    "none": NoFault,
    "late-loader": LateLoader,
    "extra-compute": TensorflowExtraCompute,
    "syncs": StepSyncs,
    "whole-exchange": TensorflowWholeCommunication,
}


def run(plan: SelftestPlan, started: Launched) -> None:
    """Run the faults of one launch in this process."""
    run_faults(plan, started, DistributedTrainer, KINDS)
