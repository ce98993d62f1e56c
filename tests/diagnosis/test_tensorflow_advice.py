"""Every finding of every rule, as a TensorFlow user would read it."""

from __future__ import annotations

import re

import pytest

from gpudiag.diagnosis.rules import RULES
from gpudiag.diagnosis.tensorflow_advice import in_tensorflow
from gpudiag.model.analysis import Finding
from gpudiag.pipeline import analyze
from tests.readers.documents import TRACES

PYTORCH = re.compile(r"torch|DataLoader|DDP|pin_memory|\.item\(\)")
JOBS = ("slow_loader_rank2", "vgg_p2poff", "tiny", "clean", "gloo_dataloader", "resnet50_dataloader")


@pytest.mark.parametrize("job", JOBS)
def test_real_findings_keep_advice_and_none_of_it_is_pytorch(job: str) -> None:
    findings = analyze([TRACES / job]).findings
    assert findings
    for finding in findings:
        told = in_tensorflow(finding)
        assert told.advice, finding.code
        assert not [line for line in told.advice if PYTORCH.search(line)]
        assert (told.code, told.recoverable_ms_per_step) == (finding.code, finding.recoverable_ms_per_step)


@pytest.mark.parametrize("code", sorted({rule.code for rule in RULES}))
def test_every_rule_has_advice_of_its_own_or_keeps_what_holds_for_both(code: str) -> None:
    bare = Finding(code=code, severity="warning", title="", confidence="high", cause="input", advice=("Look there.",))
    assert in_tensorflow(bare).advice[-1] == "Look there."


def test_the_real_trace_of_tensorflow() -> None:
    advice = [line for finding in analyze([TRACES / "tensorflow"]).findings for line in finding.advice]
    assert advice
    assert not [line for line in advice if PYTORCH.search(line)]
