"""Faults of known size, put into a training loop one at a time: what `gpudiag selftest` runs in each process.

`job` is what all frameworks do; a folder for each has its loop and its faults. Nothing of this leaves a mark that a
user's own loop would not leave; the profiler sees a plain program.
"""
