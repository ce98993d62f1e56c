"""Implement `gpudiag scale`: choose the points to measure, save them, and read their recorded steps."""
