"""The faults by kind. Each begins switched off and is switched on and off between two steps, in every process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from gpudiag.worker.tensorflow.clock import settle

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpudiag.model.selftest import FaultPlan
    from gpudiag.workloads.tensorflow.faults.trainer import Trainer

#: Square matrices of this side: 0.2 ms on a fast GPU, about 1 ms on one CPU core.
_GPU_SIDE, _CPU_SIDE = 4096, 384
_REPEATS, _ROUNDS = 20, 3


def nothing(trainer: Trainer, amount_ms: float) -> Callable[[bool], None]:  # noqa: ARG001
    """A clean run: on and off are the same."""
    return lambda _on: None


def late_loader(trainer: Trainer, amount_ms: float) -> Callable[[bool], None]:
    """Each batch comes `amount_ms` late."""

    def switch(on: bool) -> None:
        trainer.loader.late_s = amount_ms / 1e3 if on else 0.0

    return switch


def extra_compute(trainer: Trainer, amount_ms: float) -> Callable[[bool], None]:
    """As many matrix products before each step as take `amount_ms`, measured on this device beforehand."""
    with tf.device(trainer.device):
        side = _GPU_SIDE if trainer.device.startswith("GPU:") else _CPU_SIDE
        matrix = tf.random.normal((side, side))

        def multiply(count: int) -> None:
            product = matrix
            for _ in range(count):
                product = tf.matmul(matrix, product)

        each_ms = _milliseconds_of(lambda: multiply(_REPEATS), trainer.device) / _REPEATS

    def work() -> None:
        with tf.device(trainer.device):
            multiply(max(1, round(amount_ms / each_ms)))

    def switch(on: bool) -> None:
        trainer.extra = work if on else None

    return switch


def syncs(trainer: Trainer, amount_ms: float) -> Callable[[bool], None]:  # noqa: ARG001  # one per step
    """The loss is read after each step, as in loops that log it, and the device is waited for.

    Functions on a CPU end when their work is done, so that there it costs next to nothing, which is to be found too.
    """

    def read(loss: Any) -> None:
        float(loss.values[0] if hasattr(loss, "values") else loss)
        settle([trainer.device])

    def switch(on: bool) -> None:
        trainer.after = read if on else None

    return switch


def whole_exchange(trainer: Trainer, amount_ms: float) -> Callable[[bool], None]:  # noqa: ARG001  # there is but one
    """Off, the gradients are not exchanged; on is the clean job. So what its exchange costs can be told."""
    return trainer.exchange_barely()


KINDS = {
    "none": nothing,
    "late-loader": late_loader,
    "extra-compute": extra_compute,
    "syncs": syncs,
    "whole-exchange": whole_exchange,
}


def make_fault(plan: FaultPlan, trainer: Trainer) -> Callable[[bool], None]:
    """The switch of the fault in this process; one that does nothing where other ranks have it."""
    mine = not plan.ranks or trainer.place.rank in plan.ranks
    switch = KINDS[plan.kind](trainer, plan.amount * trainer.clean_ms)
    return switch if mine else lambda _on: None


def _milliseconds_of(function: Callable[[], object], device: str) -> float:
    """How long one call takes, work on the device included: the fastest of three, since other programs run too."""
    rounds = []
    for _ in range(_ROUNDS):
        settle([device])
        began = time.perf_counter()
        function()
        settle([device])
        rounds.append(1e3 * (time.perf_counter() - began))
    return min(rounds)
