"""Measure a user's command without changes to its code, by entering its Python processes through the environment.

`start` runs the command, with the folder `entry` first on PYTHONPATH. Therefore every Python process of the command
runs `entry/sitecustomize.py`, which waits for `import torch` and then calls `entered.enter`. This hooks all optimizers.
At the first step of an optimizer the hook imports `attachment`. `boundaries` finds the calls that end a step, and the
step at which all ranks begin. `attached_session` measures as `gpudiag.profile` does. A process that trains without a
PyTorch optimizer is recorded for a fixed time instead (`by_time`).
"""
