"""Combine reading, analysis and reports into use cases, one per command. The commands print the results.

A use case that fails raises a subclass of `GpudiagError`. The command prints its message and its hint.
"""
