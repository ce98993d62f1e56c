"""Faults of known size, put into a training loop one at a time: what `gpudiag selftest` runs in each process.

Nothing of this leaves a mark that a user's own loop would not leave; the profiler sees a plain PyTorch program.
"""
