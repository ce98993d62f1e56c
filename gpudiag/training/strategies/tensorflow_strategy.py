"""The interface of TensorFlow strategies. Only its methods for training processes import TensorFlow."""

from __future__ import annotations

from typing import Any, ClassVar

from gpudiag.training.strategies.strategy import Strategy


class TensorflowStrategy(Strategy):
    """A strategy that uses a `tf.distribute.Strategy`.

    Attributes:
        feeds_itself: each worker takes its batches from the host; otherwise the training loop passes them.
    """

    framework: ClassVar[str] = "tensorflow"
    one_process = True
    feeds_itself: ClassVar[bool] = False

    @classmethod
    def make(cls, devices: tuple[str, ...]) -> Any:
        """Make the `tf.distribute.Strategy` for this process's devices (`GPU:0`, `CPU:1`)."""
        raise NotImplementedError  # an abstract method would have no effect, because the class is never instantiated

    @classmethod
    def workers(cls, devices: tuple[str, ...]) -> int:
        """Return the number of workers, if the strategy `feeds_itself`."""
        return len(devices)
