"""Build a timeline from traces: one clock, steps, windows, launches joined to device work, matched collectives."""

from gpudiag.analysis.timeline.build import build_timeline

__all__ = ["build_timeline"]
