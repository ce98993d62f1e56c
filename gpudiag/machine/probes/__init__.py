"""Running the probe programs, and what becomes of their figures.

In order: `plan` which programs, `runner` each in a process of its own, `programs` what they print, `assemble` into
facts with `fits` of the transports, `cache` for a day.
"""
