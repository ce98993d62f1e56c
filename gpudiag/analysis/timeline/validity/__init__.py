"""What stands in the way of trusting a timeline, and what to record instead, a doubt a file; see `examine`."""

from gpudiag.analysis.timeline.validity.examine import examine

__all__ = ["examine"]
