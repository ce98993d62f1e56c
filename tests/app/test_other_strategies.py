"""Predicted savings of other strategies in findings of communication."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpudiag.app.other_strategies import beside_other_strategies
from gpudiag.machine.facts_file import load_facts
from gpudiag.model.analysis import Finding
from gpudiag.model.run import ModelRecord, RunRecord

FACTS = load_facts(Path(__file__).parents[1] / "machines" / "h200x4.json")
#: VGG-16's gradients in fp32, in the order of backward: three fully connected layers, thirteen convolutions.
_SHAPES = [(1000, 4096), (4096, 4096), (4096, 25088)]
_SHAPES += [(512, 512 * 9)] * 5 + [(512, 256 * 9), (256, 256 * 9), (256, 256 * 9), (256, 128 * 9)]
_SHAPES += [(128, 128 * 9), (128, 64 * 9), (64, 64 * 9), (64, 27)]
SIZES = tuple(4 * size for rows, columns in _SHAPES for size in (rows, rows * columns))
#: Measured on four H200 without peer access: a step of 39.1 ms, 19.9 of them for the exchange over NCCL, and 2.0 for
#: that through the host (docs/accuracy.md).
STEP_MS, COMMUNICATION_MS = 39.1, 19.9

FOUND = Finding(
    code="communication-bound",
    severity="critical",
    ranks=(0, 1, 2, 3),
    cause="transfer",
    recoverable_ms_per_step=COMMUNICATION_MS,
    recoverable_percent=100 * COMMUNICATION_MS / STEP_MS,
    confidence="high",
    title="",
    evidence={"step_ms_now": STEP_MS},
    advice=("Send fewer bytes.",),
)
RUN = RunRecord(
    created="",
    command=("gpudiag", "profile"),
    workload="vgg16",
    framework="pytorch",
    strategy="nccl",
    world_size=4,
    nodes=1,
    batch_size_per_device=64,
    options={"p2p": "off"},
    model=ModelRecord(parameters=sum(SIZES) // 4, gradient_bytes=sum(SIZES), gradient_sizes=SIZES),
    ranks=(),
    status="complete",
)


def savings(finding: Finding = FOUND, run: RunRecord | None = RUN, **facts: object) -> dict[str, float]:
    (told,) = beside_other_strategies([finding], run, msgspec.structs.replace(FACTS, **facts))
    found = told.evidence.get("savings_ms_by_strategy", {})
    assert isinstance(found, dict)
    assert (len(told.advice) > len(finding.advice)) == bool(found)
    return found


def test_reduction_on_the_host_is_named_without_peer_access() -> None:
    found = savings()
    assert next(iter(found)) == "cpu-reduce", "what keeps all digits comes first"
    assert found["cpu-reduce"] == pytest.approx(COMMUNICATION_MS - 2.0, abs=0.15 * STEP_MS)
    assert "independent" not in found, "no exchange at all is no way to exchange"


def test_idle_links_are_the_first_advice() -> None:
    slow = msgspec.structs.replace(FOUND, evidence={**FOUND.evidence, "nvlink_gb_per_s": 450.0})
    first = [beside_other_strategies([finding], RUN, FACTS)[0].advice[0] for finding in (FOUND, slow)]
    assert ["cpu-reduce" in advice for advice in first] == [True, False]


def test_no_saving_is_named_with_peer_access() -> None:
    assert savings(run=msgspec.structs.replace(RUN, options={"p2p": "on"})) == {}


@pytest.mark.parametrize(
    ("finding", "run", "facts"),
    [
        pytest.param(msgspec.structs.replace(FOUND, code="straggler"), RUN, {}, id="another finding"),
        pytest.param(FOUND, None, {}, id="no record of the run"),
        pytest.param(FOUND, RUN, {"bandwidth": ()}, id="links that nobody measured"),
        pytest.param(FOUND, msgspec.structs.replace(RUN, model=None), {}, id="a model that nobody described"),
        pytest.param(FOUND, msgspec.structs.replace(RUN, nodes=2), {}, id="several machines"),
        pytest.param(FOUND, msgspec.structs.replace(RUN, strategy="their own"), {}, id="an unknown strategy"),
        pytest.param(FOUND, msgspec.structs.replace(RUN, strategy="independent"), {}, id="no exchange"),
        pytest.param(msgspec.structs.replace(FOUND, recoverable_ms_per_step=5.0), RUN, {}, id="too little to save"),
    ],
)
def test_no_saving_is_named_without_the_needed_figures(
    finding: Finding, run: RunRecord | None, facts: dict[str, object]
) -> None:
    assert savings(finding, run, **facts) == {}
