"""The training loop of the selftest under TensorFlow, and the faults that are injected into it."""
