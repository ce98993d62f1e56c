"""Compares two analyses."""

from gpudiag.comparison.compare import compare

__all__ = ["compare"]
