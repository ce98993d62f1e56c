"""Doubts about a timeline: what makes it untrustworthy, and what to record instead. `examine` collects them all."""

from gpudiag.analysis.timeline.validity.examine import examine

__all__ = ["examine"]
