"""Measure a user's command without changes to its code, by loading gpudiag into its Python processes (PYTHONPATH).

`start` runs the command, with the folder `entry` first on PYTHONPATH. Therefore every Python process of the command
runs `entry/sitecustomize.py`. If the process imports torch, `entered.enter` is called then, and hooks all optimizers.
At the first step of an optimizer the hook imports `attachment`. `boundaries` finds the optimizer calls that end a step,
and the first step that all ranks measure. `attached_session` measures as `gpudiag.profile` does. A process that trains
without a PyTorch optimizer is recorded for a fixed time instead (`by_time`).
"""
