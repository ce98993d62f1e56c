"""Implement the selftest's training loops under PyTorch, and the faults that are injected into them."""
