"""Attribute device time: exclusive buckets, hidden communication, and waits of ranks for each other."""

from gpudiag.analysis.attribution.attribute import attribute

__all__ = ["attribute"]
