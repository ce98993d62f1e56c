"""Implement `gpudiag scale`: choose jobs of several sizes (points), measure them, and read their results."""
