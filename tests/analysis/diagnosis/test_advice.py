"""Test the advice of every finding, as users of each framework read it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.diagnosis.case import Case, without_outlier_steps
from gpudiag.analysis.diagnosis.documented import DOCUMENTED_RULES
from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.analysis.diagnosis.rules.rule import For, advice_for, others
from gpudiag.analysis.timeline import build_timeline
from gpudiag.app.analyze import analyze
from gpudiag.trace import read_traces
from tests.analysis.diagnosis.rule_examples import every_example
from tests.analysis.diagnosis.rule_examples.jobs import Job
from tests.trace.documents import TRACES

if TYPE_CHECKING:
    from gpudiag.model.analysis import Finding

PYTORCH = re.compile(r"torch|DataLoader|DDP|pin_memory|\.item\(\)")
TENSORFLOW = re.compile(r"\btf\.|tf\.data|jit_compile|TF_|NcclAllReduce")
JAX = re.compile(r"\bjax\b|XLA_")
#: Framework → terms of all other frameworks.
FOREIGN = {
    "tensorflow": re.compile(f"{PYTORCH.pattern}|{JAX.pattern}"),
    "jax": re.compile(f"{PYTORCH.pattern}|{TENSORFLOW.pattern}|gpudiag\\.(?:range|profile)"),
    "unknown": re.compile(f"{PYTORCH.pattern}|{TENSORFLOW.pattern}|{JAX.pattern}"),
}
JOBS = ("slow_loader_rank2", "vgg_p2poff", "tiny", "clean", "gloo_dataloader", "resnet50_dataloader")
#: `make test` runs the first example of each rule.
EXAMPLES = [
    pytest.param(job, id=f"{rule.code}: {what}", marks=[pytest.mark.apart] if index else [])
    for rule in DOCUMENTED_RULES
    for index, (what, job) in enumerate(every_example(rule.code, "FIRES"))
]


@pytest.mark.parametrize("job", [*(pytest.param(job, marks=pytest.mark.apart) for job in JOBS), *EXAMPLES])
def test_finding_has_advice_for_its_framework_only(job: str | Job) -> None:
    timeline = build_timeline(job.traces() if isinstance(job, Job) else read_traces([TRACES / job]))
    attribution = attribute(timeline)

    def findings_in(framework: str) -> tuple[Finding, ...]:
        case = Case(timeline=replace(timeline, framework=framework), attribution=attribution)
        return diagnose(without_outlier_steps(case)).findings

    findings = findings_in("pytorch")
    assert findings
    assert all(finding.advice for finding in findings)
    for framework, foreign in FOREIGN.items():
        adapted = findings_in(framework)
        assert [(finding.code, finding.recoverable_ms_per_step) for finding in adapted] == [
            (finding.code, finding.recoverable_ms_per_step) for finding in findings
        ]
        assert all(finding.advice for finding in adapted), framework
        assert not [line for finding in adapted for line in finding.advice if foreign.search(line)]


def test_advice_for_all_frameworks_keeps_the_rules_order() -> None:
    lines = (For("tensorflow", "Prefetch."), "Look at {ranks}.", For("pytorch", "Pin it."), "Cache.")
    assert advice_for("pytorch", lines, ranks="rank 2") == ("Look at rank 2.", "Pin it.", "Cache.")
    assert advice_for("tensorflow", lines, ranks="rank 2") == ("Prefetch.", "Look at rank 2.", "Cache.")
    assert advice_for("another", lines[3:]) == ("Cache.",)
    beside = (*lines, others("Prepare it ahead."))
    assert advice_for("jax", beside, ranks="rank 2") == ("Look at rank 2.", "Cache.", "Prepare it ahead.")
    assert advice_for("pytorch", beside, ranks="rank 2") == ("Look at rank 2.", "Pin it.", "Cache.")


def test_advice_for_a_tensorflow_recording_has_no_pytorch_terms() -> None:
    advice = [line for finding in analyze([TRACES / "tensorflow"]).findings for line in finding.advice]
    assert advice
    assert not [line for line in advice if PYTORCH.search(line)]
