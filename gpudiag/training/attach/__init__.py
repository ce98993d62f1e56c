"""Measuring a command that is nobody's but the user's: its training processes are entered through the environment.

`start` runs the command, with the folder `entry` put first on PYTHONPATH. `entry/sitecustomize.py` waits in every
Python process for `import torch` and then calls `entered`, whose hook on all optimizers costs nothing until one steps.
`attachment` is what it then becomes: `boundaries` says which calls end a step, `roll_call` at which of them all ranks
begin, `attached_session` times and records as `gpudiag.profile` does. A process that trains without an optimizer of
torch's is recorded for a while instead (`by_time`).
"""
