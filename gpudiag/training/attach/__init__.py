"""Measure a user's command without changes to its code: gpudiag enters its processes through the environment.

`start` runs the command, with the folder `entry` first on PYTHONPATH. In every Python process,
`entry/sitecustomize.py` waits for `import torch` and then calls `entered`, which hooks all optimizers. The hook costs
nothing until an optimizer steps. At the first step `attachment` is imported. `boundaries` finds the calls that end a
step, and the step at which all ranks begin. `attached_session` measures as `gpudiag.profile` does. A process that
trains without a PyTorch optimizer is recorded for a fixed time instead (`by_time`).
"""
