"""Test the scorer of recordings: its verdicts on hand-made answers, and the files of expectations."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TRACES = Path(__file__).parents[1] / "traces"


def _module() -> Any:
    """Import benchmarks/expectation.py, which is no package."""
    spec = importlib.util.spec_from_file_location("expectation", BENCHMARKS / "expectation.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["expectation"] = module  # msgspec resolves the module's annotations in `sys.modules`
    spec.loader.exec_module(module)
    return module


EXPECTATION = _module()


def finding(code: str, percent: float = 30.0, **changed: Any) -> dict[str, Any]:
    plain = {"severity": "critical", "ranks": [2], "cause": "input", "title": "", "place": "", "evidence": {}}
    amounts = {"recoverable_ms_per_step": percent, "recoverable_percent": percent}
    return {"code": code, **plain, **amounts, **changed}


def output(*findings: dict[str, Any], report: str = "", validity: tuple[str, ...] = (), **fields: Any) -> Any:
    warnings = [{"code": code, "message": ""} for code in validity]
    device = {"step_ms": 100.0, "buckets_ms": {"launch": 40.0}}
    analysis = {"findings": list(findings), "validity": warnings, "devices": [device], **fields}
    return EXPECTATION.Said(analysis=analysis, report=report)


def verdict(answer: Any, **expected: Any) -> str:
    expectation = msgspec.convert({"name": "a", "path": "b", **expected}, EXPECTATION.Expectation)
    result: str = EXPECTATION.score(expectation, answer).verdict
    return result


LATE = {"codes": ["straggler"], "ranks": [2], "causes": ["input"], "ms": [25, 35]}


def test_right_answer_has_code_cause_ranks_and_amount() -> None:
    assert verdict(output(finding("straggler")), **LATE) == "right"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"code": "host-stall"}, "wrong"),
        ({"ranks": [1]}, "wrong"),
        ({"cause": "launch"}, "wrong"),
        ({"recoverable_ms_per_step": 12.0}, "partly"),
        ({"recoverable_ms_per_step": None}, "partly"),
    ],
)
def test_each_expected_field_is_compared(changed: dict[str, Any], expected: str) -> None:
    assert verdict(output(finding("straggler") | changed), **LATE) == expected


def test_answer_without_finding_is_silent_unless_none_is_expected() -> None:
    assert verdict(output(), **LATE) == "silent"
    assert verdict(output(), **LATE, silent_is_right=True) == "right"
    assert verdict(output(finding("host-stall")), codes=[], silent_is_right=True) == "wrong"


def test_actionable_finding_precedes_compute_bound_and_small_findings() -> None:
    trifle = finding("slow-copy", 1.0, severity="info")
    plain = finding("compute-bound", 0.0, severity="info")
    assert verdict(output(trifle, plain), codes=["compute-bound"]) == "right"
    assert verdict(output(trifle, plain, finding("straggler")), codes=["compute-bound"]) == "wrong"


def test_savings_above_the_maximum_mislead() -> None:
    main, promise = finding("straggler"), finding("slow-copy", 8.0)
    assert verdict(output(main, promise), codes=["straggler"], most_percent=10) == "right"
    assert verdict(output(main, promise), codes=["straggler"], most_percent=5) == "wrong"
    possible = finding("slow-compute", 8.0, severity="info")  # savings by a compiler are not promised
    assert verdict(output(main, possible), codes=["straggler"], most_percent=5) == "right"


def test_expected_words_warnings_and_fields_are_compared() -> None:
    answer = output(report="PyTorch training on a\nGPU", validity=("cannot-tell:straggler",), workload="training")
    assert verdict(answer, never=["JAX"], validity=["cannot-tell"], fields={"workload": ["training"]}) == "right"
    assert verdict(answer, never=[r"a GPU"]) == "wrong"
    assert verdict(answer, not_validity=["cannot-tell"]) == "wrong"
    assert verdict(answer, not_fields={"workload": ["training"]}) == "wrong"
    assert verdict(answer, says=["JAX"]) == "partly"
    assert verdict(answer, validity=["few-steps"]) == "partly"
    assert verdict(answer, fields={"workload": ["inference"]}) == "partly"
    assert verdict(answer, ranges={"devices.0.step_ms": [None, 99]}) == "partly"
    assert verdict(answer, buckets_percent={"launch": [0, 10]}) == "partly"


def test_headline_can_replace_a_finding() -> None:
    expected = {"codes": ["communication-bound"], "headline": ["communication, or waiting"]}
    headline = "Communication, or waiting in it: 238 ms\nWhere a step's time goes\n"
    assert verdict(output(report=headline), **expected) == "right"
    assert verdict(output(report=f"Where a step's time goes\n{headline}"), **expected) == "silent"


def test_unreadable_recording_is_failed() -> None:
    refused = EXPECTATION.Said(error="no trace")
    assert verdict(refused, codes=["straggler"]) == "failed"
    assert verdict(refused, codes=[], silent_is_right=True, says=["no trace"]) == "right"


@pytest.mark.parametrize("name", ["repository", "public"])
def test_expectations_are_well_formed(name: str) -> None:
    text = (BENCHMARKS / "expectations" / f"{name}.json").read_bytes()
    expectations = [msgspec.convert(entry, EXPECTATION.Expectation) for entry in msgspec.json.decode(text)]
    assert len({expectation.name for expectation in expectations}) == len(expectations)
    if name == "repository":
        missing = [expectation.path for expectation in expectations if not (TRACES / expectation.path).exists()]
        assert missing == []
