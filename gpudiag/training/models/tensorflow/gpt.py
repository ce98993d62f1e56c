"""Define `gpt`: GPT-2 small (A. Radford et al., 2019), 12 layers, 768 wide, 12 heads, the embedding as output layer.

The model has 124,475,904 parameters like the PyTorch workload. The vocabulary of 50,257 tokens is rounded up to a
multiple of 64, because matrix products with such sizes are faster.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from gpudiag.training.models.tensorflow.workload import KerasWorkload, Samples

VOCABULARY = 50_304
CONTEXT = 1024
#: Number of tokens per sequence on a CPU. The model is the same as on GPUs.
CPU_CONTEXT = 128
WIDTH = 768
LAYERS = 12
HEADS = 12


@keras.saving.register_keras_serializable(package="gpudiag")
class Positions(layers.Layer):  # type: ignore[misc]  # keras is untyped
    """Add a trained vector to each position of a sequence, which may be shorter than CONTEXT."""

    def build(self, input_shape: Any) -> None:
        """Make the vectors, float[CONTEXT, width]."""
        self.vectors = self.add_weight(shape=(CONTEXT, input_shape[-1]), initializer="random_normal", name="vectors")

    def call(self, x: Any) -> Any:
        """Map float[n, t, width] to the same shape."""
        return x + tf.cast(self.vectors[: x.shape[1]], x.dtype)


def transformer_block(x: Any) -> Any:
    """Apply causal self-attention and a feed-forward layer. A layer norm precedes each of the two."""
    y = layers.LayerNormalization(epsilon=1e-5)(x)
    # Query, key and value have separate matrices. Together they have as many parameters as GPT-2's single matrix.
    y = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(y, y, use_causal_mask=True)
    x = layers.Add()([x, y])
    y = layers.LayerNormalization(epsilon=1e-5)(x)
    y = layers.Dense(4 * WIDTH, activation=keras.activations.gelu)(y)
    return layers.Add()([x, layers.Dense(WIDTH)(y)])


class KerasGpt2Small(KerasWorkload):
    """GPT-2 small: large matrix products and 498 MB of gradients in fp32."""

    def model(self) -> Any:
        """Build token and position embedding, twelve blocks, and the token embedding as output layer."""
        tokens = layers.Input((self._context,), dtype="int32")
        embedding = layers.ReversibleEmbedding(VOCABULARY, WIDTH, tie_weights=True)
        x = Positions()(embedding(tokens))
        for _ in range(LAYERS):
            x = transformer_block(x)
        x = layers.LayerNormalization(epsilon=1e-5)(x)
        return keras.Model(tokens, embedding(x, reverse=True))

    def samples(self, count: int, generator: np.random.Generator) -> Samples:
        """Make int32[count, t] tokens and the tokens that follow them."""
        tokens = generator.integers(0, VOCABULARY, (count, self._context + 1), dtype=np.int32)
        return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])

    def optimizer(self) -> Any:
        """Return AdamW."""
        return keras.optimizers.AdamW(learning_rate=3e-4, beta_1=0.9, beta_2=0.95, weight_decay=0.1)

    @property
    def _context(self) -> int:
        return CONTEXT if self.on_gpu else CPU_CONTEXT
