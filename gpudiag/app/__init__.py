"""Combine the stages into use cases, one per command. This package draws nothing.

A use case that fails raises a subclass of `GpudiagError`. The command prints its message and its hint.
"""
