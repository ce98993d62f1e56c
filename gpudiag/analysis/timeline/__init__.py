"""Traces → Timeline: one clock, steps, windows, launches joined to device work, collectives matched across ranks."""

from gpudiag.analysis.timeline.build import build_timeline

__all__ = ["build_timeline"]
