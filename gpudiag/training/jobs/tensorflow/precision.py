"""Number formats under TensorFlow: which the matrix units use, and what goes with each."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from gpudiag.model.job import Precision

_POLICIES = {"bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


def set_precision(precision: Precision) -> None:
    """Set it for all models made from now on in this process.

    `fp32` computes in IEEE single precision throughout, `tf32` lets matrix units round its inputs to 10 bits of
    mantissa (NVIDIA Ampere and later; TensorFlow's own default), `bf16` and `fp16` are Keras's mixed policies, whose
    variables stay in single precision.
    """
    tf.config.experimental.enable_tensor_float_32_execution(precision != "fp32")
    keras.config.set_dtype_policy(_POLICIES.get(precision, "float32"))


def scaling(optimizer: Any, precision: Precision) -> Any:
    """The optimizer, for `fp16` with dynamic scaling of the loss."""
    return keras.optimizers.LossScaleOptimizer(optimizer) if precision == "fp16" else optimizer
