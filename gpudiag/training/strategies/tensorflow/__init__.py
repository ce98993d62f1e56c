"""Implement the strategies under TensorFlow. `strategies.registry` lists strategies without importing TensorFlow."""
