"""The selftest's loop under PyTorch, a plain DDP program, and the faults that are put into it."""
