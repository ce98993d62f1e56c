"""The logical devices that this process trains on, and what they are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def training_devices(wanted: Any, model: Any) -> tuple[str, ...]:
    """Short names (`GPU:0`, `CPU:1`) of the devices of this process.

    Those wanted; else those on which the model's strategy, or the strategy in whose scope this is, puts replicas; else
    the first GPU; else the CPU.

    Args:
        wanted: a device name, a sequence of them, or None.
        model: a Keras model, or None.
    """
    import tensorflow as tf

    if wanted is not None:
        names = [wanted] if isinstance(wanted, str) else list(wanted)
        return tuple(short_name(str(name)) for name in names)
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is None and tf.distribute.has_strategy():
        strategy = tf.distribute.get_strategy()
    if strategy is not None and strategy.num_replicas_in_sync > 1:
        return tuple(short_name(name) for name in strategy.extended.worker_devices)
    return ("GPU:0",) if tf.config.list_logical_devices("GPU") else ("CPU:0",)


def short_name(name: str) -> str:
    """`GPU:1` of `/job:localhost/replica:0/task:0/device:GPU:1`, `/gpu:1` or `GPU:1`.

    >>> short_name("/job:worker/replica:0/task:1/device:GPU:0")
    'GPU:0'
    >>> short_name("/cpu:1")
    'CPU:1'
    """
    kind, _, ordinal = name.rpartition("/")[2].removeprefix("device:").partition(":")
    return f"{kind.upper()}:{ordinal or 0}"


def hardware_name(device: str, cpu: str) -> str:
    """Model of a GPU by its short name; `cpu` for any CPU device."""
    import tensorflow as tf

    kind, _, ordinal = device.partition(":")
    physical: Sequence[Any] = tf.config.list_physical_devices("GPU") if kind == "GPU" else ()
    if int(ordinal) >= len(physical):
        return cpu
    details = tf.config.experimental.get_device_details(physical[int(ordinal)])
    return str(details.get("device_name", ""))
