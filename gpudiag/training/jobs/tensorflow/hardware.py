"""The devices that this process is to train on, made ready; and why they cannot be used, where they cannot."""

from __future__ import annotations

import ctypes
from typing import Literal

import tensorflow as tf

from gpudiag.errors import FrameworkMissingError, HardwareMissingError

#: What TensorFlow's CUDA 12 builds load, and cannot use a GPU without.
_LIBRARIES = (
    "libcudart.so.12",
    "libcublas.so.12",
    "libcublasLt.so.12",
    "libcufft.so.11",
    "libcusolver.so.11",
    "libcusparse.so.12",
    "libcudnn.so.9",
)


def use_devices(kind: Literal["cuda", "cpu"], count: int) -> tuple[str, ...]:
    """Short names of this process's devices: the first GPUs that it sees, or logical CPU devices that share its cores.

    Must be called before TensorFlow has run anything.

    Args:
        kind: GPUs or CPU devices.
        count: how many.

    Raises:
        FrameworkMissingError: there should be GPUs, and TensorFlow sees none.
        HardwareMissingError: it sees fewer than wanted.
    """
    if kind == "cpu":
        tf.config.set_visible_devices([], "GPU")
        if count > 1:
            one = tf.config.LogicalDeviceConfiguration()
            tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [one] * count)
        return tuple(f"CPU:{number}" for number in range(count))
    there = tf.config.list_physical_devices("GPU")
    if not there:
        raise FrameworkMissingError(why_no_gpu(), "Install it with them: pip install 'tensorflow[and-cuda]'.")
    if len(there) < count:
        raise HardwareMissingError(f"TensorFlow sees {len(there)} of the {count} GPUs asked for")
    tf.config.set_visible_devices(there[:count], "GPU")
    return tuple(f"GPU:{number}" for number in range(count))


def why_no_gpu() -> str:
    """One line on why TensorFlow sees no GPU on a machine that has some."""
    if not tf.test.is_built_with_cuda():
        return f"TensorFlow {tf.__version__} here was built without CUDA"
    missing = [name for name in _LIBRARIES if not _loads(name)]
    if missing:
        return f"TensorFlow {tf.__version__} cannot use the GPUs: it does not find {', '.join(missing)}"
    return f"TensorFlow {tf.__version__} cannot use the GPUs; its own messages in the log say why"


def _loads(library: str) -> bool:
    """Is it loaded already, or found where the dynamic linker looks?"""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
