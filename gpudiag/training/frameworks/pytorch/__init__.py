"""Support for PyTorch: step clock, profiler, DataLoader times, FLOP count, and torchrun."""
