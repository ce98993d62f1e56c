"""Define the interface of TensorFlow strategies. Only methods that training processes call import TensorFlow."""

from __future__ import annotations

from typing import Any, ClassVar

from gpudiag.training.strategies.strategy import Strategy


class TensorflowStrategy(Strategy):
    """Base class of strategies that use a `tf.distribute.Strategy`.

    Attributes:
        feeds_itself: True if each worker fetches its batches; False if the training loop passes batches to the step.
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
        """Return the number of workers. Call this only if `feeds_itself` is True."""
        return len(devices)
