"""Timeline → Attribution: exclusive buckets, hidden communication, and who waited for whom."""

from gpudiag.attribution.attribute import attribute

__all__ = ["attribute"]
