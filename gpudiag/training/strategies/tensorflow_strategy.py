"""What a TensorFlow strategy does in a training process. TensorFlow is imported then."""

from __future__ import annotations

from typing import Any, ClassVar

from gpudiag.training.strategies.strategy import Strategy


class TensorflowStrategy(Strategy):
    """How the devices of a TensorFlow job keep their models the same: a `tf.distribute.Strategy`.

    Attributes:
        feeds_itself: its workers take batches from the host, each for itself, and not the training loop.
    """

    framework: ClassVar[str] = "tensorflow"
    one_process = True
    feeds_itself: ClassVar[bool] = False

    @classmethod
    def make(cls, devices: tuple[str, ...]) -> Any:
        """Make the `tf.distribute.Strategy` for this process's devices (`GPU:0`, `CPU:1`)."""
        raise NotImplementedError  # no ABC would notice: strategies are asked as classes and never instantiated

    @classmethod
    def workers(cls, devices: tuple[str, ...]) -> int:
        """How many take batches each for itself, where it `feeds_itself`."""
        return len(devices)
