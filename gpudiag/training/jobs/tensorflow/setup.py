"""Select the devices and the precision of a TensorFlow process."""

from __future__ import annotations

import ctypes
from typing import Any, Literal

import keras
import tensorflow as tf

from gpudiag.errors import FrameworkMissingError, HardwareMissingError
from gpudiag.model.job import Precision

#: Libraries that TensorFlow's CUDA 12 builds need to use a GPU.
_LIBRARIES = (
    "libcudart.so.12",
    "libcublas.so.12",
    "libcublasLt.so.12",
    "libcufft.so.11",
    "libcusolver.so.11",
    "libcusparse.so.12",
    "libcudnn.so.9",
)
_POLICIES = {"bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


def use_devices(kind: Literal["cuda", "cpu"], count: int) -> tuple[str, ...]:
    """Select this process's devices, and return their short names, for example `GPU:0`.

    The devices are the first `count` GPUs, or logical CPU devices that share the process's cores. Call this function
    before TensorFlow runs any op.

    Raises:
        FrameworkMissingError: TensorFlow sees no GPU.
        HardwareMissingError: TensorFlow sees fewer GPUs than requested.
    """
    if kind == "cpu":
        tf.config.set_visible_devices([], "GPU")
        if count > 1:
            logical = [tf.config.LogicalDeviceConfiguration()] * count
            tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
        return tuple(f"CPU:{number}" for number in range(count))
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        raise FrameworkMissingError(why_no_gpu(), "Install it with them: pip install 'tensorflow[and-cuda]'.")
    if len(gpus) < count:
        raise HardwareMissingError(f"TensorFlow sees {len(gpus)} of the {count} GPUs asked for")
    tf.config.set_visible_devices(gpus[:count], "GPU")
    return tuple(f"GPU:{number}" for number in range(count))


def why_no_gpu() -> str:
    """Explain in one line why TensorFlow sees no GPU on a machine that has GPUs."""
    if not tf.test.is_built_with_cuda():
        return f"TensorFlow {tf.__version__} here was built without CUDA"
    missing = [name for name in _LIBRARIES if not _loads(name)]
    if missing:
        return f"TensorFlow {tf.__version__} cannot use the GPUs: it does not find {', '.join(missing)}"
    return f"TensorFlow {tf.__version__} cannot use the GPUs; its own messages in the log say why"


def _loads(library: str) -> bool:
    """Return whether the dynamic linker finds the library."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def set_precision(precision: Precision) -> None:
    """Set the precision of all models that this process makes after this call.

    `fp32` is IEEE single precision. `tf32`, TensorFlow's default, lets matrix units round inputs to 10 bits of mantissa
    (NVIDIA Ampere and later). `bf16` and `fp16` are Keras's mixed policies with variables in single precision.
    """
    tf.config.experimental.enable_tensor_float_32_execution(precision != "fp32")
    keras.config.set_dtype_policy(_POLICIES.get(precision, "float32"))


def scaling(optimizer: Any, precision: Precision) -> Any:
    """Return the optimizer, for `fp16` with dynamic loss scaling."""
    return keras.optimizers.LossScaleOptimizer(optimizer) if precision == "fp16" else optimizer
