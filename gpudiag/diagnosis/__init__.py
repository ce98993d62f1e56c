"""Timeline and Attribution → Findings: rules, each one file, run by a small engine."""

from gpudiag.diagnosis.case import Case
from gpudiag.diagnosis.engine import diagnose

__all__ = ["Case", "diagnose"]
