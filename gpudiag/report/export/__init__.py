"""Export of events for other tools.

`assemble` makes the export `model` (events and gpudiag's tracks on one clock), `formats/` write it, one module each;
`tensorboard/` shows it.
"""
