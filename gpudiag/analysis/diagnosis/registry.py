"""Register all rules and all other code that makes findings from traces. A rule that is not in `RULES` never runs."""

from __future__ import annotations

from collections.abc import Sequence

from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.explained import likely_causes, with_unseen_communication
from gpudiag.analysis.diagnosis.kernels.recompilation import Recompilation
from gpudiag.analysis.diagnosis.kernels.slow_compute import SlowCompute
from gpudiag.analysis.diagnosis.rules.communication_bound import CommunicationBound
from gpudiag.analysis.diagnosis.rules.compute_bound import ComputeBound
from gpudiag.analysis.diagnosis.rules.host_stall import HostStall
from gpudiag.analysis.diagnosis.rules.host_sync import HostSync
from gpudiag.analysis.diagnosis.rules.input_bound import InputBound, with_unprofiled_input
from gpudiag.analysis.diagnosis.rules.launch_bound import LaunchBound
from gpudiag.analysis.diagnosis.rules.memory_allocation import MemoryAllocation
from gpudiag.analysis.diagnosis.rules.rule import Rule
from gpudiag.analysis.diagnosis.rules.slow_copy import SlowCopy
from gpudiag.analysis.diagnosis.rules.straggler import Straggler
from gpudiag.model.analysis import Finding

#: Rules that propose scenarios to simulate. Findings with equal savings keep this order.
RULES: tuple[type[Rule], ...] = (
    Straggler,
    InputBound,
    CommunicationBound,
    Recompilation,
    HostStall,
    MemoryAllocation,
    HostSync,
    SlowCopy,
    SlowCompute,
    LaunchBound,
)


def with_pipeline_bubble(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """Add the finding about the pipeline bubble, if the job has a pipeline."""
    if not case.timeline.divides_work:
        return list(findings)
    from gpudiag.analysis.diagnosis.rules.pipeline_bubble import PipelineBubble  # noqa: PLC0415  # pipelines only

    return PipelineBubble.findings(case, findings)


#: Functions that revise the findings of `RULES`, in this order: for unprofiled steps, missing traces, and pipelines.
REVISIONS = (with_unprofiled_input, with_unseen_communication, with_pipeline_bubble)
#: The function that makes findings from shares of the step if a recording cannot be simulated.
WITHOUT_SIMULATION = likely_causes
#: The rule that concludes from all other findings.
CONCLUSION = ComputeBound
