"""Export events for other tools.

`assemble` makes the export `model`, which has the events and gpudiag's tracks on one clock. Each module in `formats/`
writes the export model in one format. `tensorboard/` shows the export model in TensorBoard.
"""
