"""Measure a user's command without changes to its code, by loading gpudiag into its Python processes (PYTHONPATH).

`start` runs the command, with the folder `entry` first on PYTHONPATH. Therefore every Python process of the command
runs `entry/sitecustomize.py`. When the process imports torch, this file calls `entered.enter`, which hooks all
optimizers. At the first optimizer step the hook imports `attachment`. `boundaries` finds the optimizer calls that end a
training step, and the first step that all ranks measure. `attached_session` measures the steps as `gpudiag.profile`
does. A process that trains without a PyTorch optimizer is recorded for a fixed time instead (`by_time`).
"""
