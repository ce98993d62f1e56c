"""Implement the selftest's training loop under TensorFlow, and the faults that are injected into it."""
