"""Export of events for other tools.

`assemble` makes the export `model` (events on one clock, with `gpudiag_tracks` above them), `formats/` write it, one
module each; `tensorboard/` shows it.
"""
