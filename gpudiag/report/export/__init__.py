"""Timeline and attribution → what other tools open.

`assemble` makes the export `model` (events on one clock, with `gpudiag_tracks` above them), `formats/` write it, a
module each; `tensorboard/` shows it.
"""
