"""List every rule with a page in docs/findings."""

from __future__ import annotations

from gpudiag.analysis.diagnosis.registry import RULES
from gpudiag.analysis.diagnosis.rules.compute_bound import ComputeBound
from gpudiag.analysis.diagnosis.rules.pipeline_bubble import PipelineBubble
from gpudiag.analysis.diagnosis.rules.rule import Rule

DOCUMENTED_RULES: tuple[type[Rule | ComputeBound | PipelineBubble], ...] = (*RULES, PipelineBubble, ComputeBound)
