"""Run the job of `gpudiag selftest` in each process. The job injects faults of known size one at a time.

The module `job` is the same for all frameworks. The folder of a framework contains training loops and faults. Faults
add no marks to traces, so the profiler records the same kinds of events as in a user's program.
"""
