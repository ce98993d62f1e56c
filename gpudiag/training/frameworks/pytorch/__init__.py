"""PyTorch in a training process: its clock, its profiler."""
