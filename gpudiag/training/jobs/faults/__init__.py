"""Faults of known size, injected one at a time: the job of each `gpudiag selftest` process.

`job` is the same for all frameworks; a folder for each has its training loop and its faults. Faults leave no marks that
a user's loop would not leave, so the profiler sees a plain program.
"""
