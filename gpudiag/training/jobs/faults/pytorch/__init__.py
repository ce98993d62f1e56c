"""The training loop of the selftest under PyTorch, and the faults that are injected into it."""
