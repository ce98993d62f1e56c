"""Attribute device time: exclusive buckets, hidden communication, and who waited for whom."""

from gpudiag.analysis.attribution.attribute import attribute

__all__ = ["attribute"]
