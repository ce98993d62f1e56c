"""Compare two analyses."""

from gpudiag.analysis.comparison.compare import compare

__all__ = ["compare"]
