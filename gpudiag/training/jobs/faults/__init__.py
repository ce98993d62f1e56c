"""The job of each `gpudiag selftest` process, which injects faults of known size one at a time.

`job` is the same for all frameworks. Each framework's folder has its training loop and its faults. Faults add no marks
to traces, so the profiler records the same as in a user's program.
"""
