"""Measure a user's command whose code is not changed: gpudiag enters its training processes through the environment.

`start` runs the command, with the folder `entry` first on PYTHONPATH. In every Python process,
`entry/sitecustomize.py` waits for `import torch` and then calls `entered`, whose hook on all optimizers costs nothing
until one steps. Then `attachment` takes over: `boundaries` finds the calls that end a step, and the step at which all
ranks begin; `attached_session` measures as `gpudiag.profile` does. A process that trains without an optimizer of
torch's is recorded for a while instead (`by_time`).
"""
