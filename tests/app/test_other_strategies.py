"""Test the predicted savings of strategies other than the recorded one, in communication findings."""

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
#: Measured on four H200 without peer access: a step takes 39.1 ms, of which communication takes 19.9 ms over NCCL, and
#: 2.0 ms through the host (docs/accuracy.md).
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
    (extended,) = beside_other_strategies([finding], run, msgspec.structs.replace(FACTS, **facts))
    savings_ms = extended.evidence.get("savings_ms_by_strategy", {})
    assert isinstance(savings_ms, dict)
    assert (len(extended.advice) > len(finding.advice)) == bool(savings_ms)
    return savings_ms


def test_reduction_on_the_host_is_recommended_without_peer_access() -> None:
    savings_ms = savings()
    assert next(iter(savings_ms)) == "cpu-reduce", "lossless strategies come first"
    assert savings_ms["cpu-reduce"] == pytest.approx(COMMUNICATION_MS - 2.0, abs=0.15 * STEP_MS)
    assert "independent" not in savings_ms, "training without communication is no alternative"


def test_advice_on_idle_nvlinks_precedes_other_strategies() -> None:
    slow = msgspec.structs.replace(FOUND, evidence={**FOUND.evidence, "nvlink_gb_per_s": 450.0})
    first = [beside_other_strategies([finding], RUN, FACTS)[0].advice[0] for finding in (FOUND, slow)]
    assert ["cpu-reduce" in advice for advice in first] == [True, False]


def test_no_other_strategy_is_recommended_with_peer_access() -> None:
    assert savings(run=msgspec.structs.replace(RUN, options={"p2p": "on"})) == {}


@pytest.mark.parametrize(
    ("finding", "run", "facts"),
    [
        pytest.param(msgspec.structs.replace(FOUND, code="straggler"), RUN, {}, id="another finding"),
        pytest.param(FOUND, None, {}, id="no record of the run"),
        pytest.param(FOUND, RUN, {"bandwidth": ()}, id="unmeasured links"),
        pytest.param(FOUND, msgspec.structs.replace(RUN, model=None), {}, id="unknown model"),
        pytest.param(FOUND, msgspec.structs.replace(RUN, nodes=2), {}, id="several machines"),
        pytest.param(FOUND, msgspec.structs.replace(RUN, strategy="their own"), {}, id="user-defined strategy"),
        pytest.param(FOUND, msgspec.structs.replace(RUN, strategy="independent"), {}, id="no communication"),
        pytest.param(msgspec.structs.replace(FOUND, recoverable_ms_per_step=5.0), RUN, {}, id="too little to save"),
    ],
)
def test_no_other_strategy_is_recommended_without_the_needed_measurements(
    finding: Finding, run: RunRecord | None, facts: dict[str, object]
) -> None:
    assert savings(finding, run, **facts) == {}
