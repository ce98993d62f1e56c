"""Test how an analysis is judged against the measured cost of a fault in blocks of steps."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.app.selftest.judge import (
    ablation_cost,
    communication_cost,
    compare,
    count_scores,
    judge,
    tolerance_ms,
    trimmed_mean,
)
from gpudiag.model.analysis import Analysis, Finding, Fix, Steps
from gpudiag.model.benchmarks.selftest import (
    Ablation,
    ExpectedFinding,
    FaultCost,
    FaultPlan,
    Found,
    SelftestRow,
    StepBlock,
)

STEP_MS = st.floats(0.1, 1e4)
LATE = ExpectedFinding(code="straggler", ranks=(2,), causes=("input",))


def blocks(*pairs: tuple[float, float], ranks: int = 2, steps: int = 4) -> list[StepBlock]:
    """Make blocks of `steps` equal steps, by turns without and with a fault; `pairs` are (off, on) steps in ms."""
    blocks = []
    for off, on in pairs:
        blocks += [
            StepBlock(on=False, step_ms=((off,) * steps,) * ranks),
            StepBlock(on=True, step_ms=((on,) * steps,) * ranks),
        ]
    return blocks


def found(**changes: Any) -> Found:
    usual: dict[str, Any] = {"code": "straggler", "ranks": (2,), "cause": "input", "ms": 26.0, "confidence": "high"}
    return Found(**(usual | changes))


def cost(ms: float, error_ms: float = 0.0) -> FaultCost:
    return FaultCost(clean_ms=30.0, faulty_ms=30.0 + ms, ms=ms, standard_error_ms=error_ms)


def test_cost_is_mean_pair_difference_with_its_standard_error() -> None:
    result = ablation_cost(blocks((30, 56), (31, 57.5), (29, 55.5)))
    assert result.ms == pytest.approx((26 + 26.5 + 26.5) / 3)
    assert result.clean_ms == pytest.approx(30)
    assert result.faulty_ms == pytest.approx((56 + 57.5 + 55.5) / 3)
    # The differences are 26, 26.5 and 26.5 ms. The differences' standard deviation is 0.5 / sqrt(3), so the standard
    # error is 0.5 / 3.
    assert result.standard_error_ms == pytest.approx(0.5 / math.sqrt(3) / math.sqrt(3))


def test_drift_adds_no_cost() -> None:
    # The machine slows down by 1 ms per block.
    order = [False, True, True, False, False, True, True, False]
    drifting = [StepBlock(on=on, step_ms=((30.0 + number,) * 4,)) for number, on in enumerate(order)]
    assert ablation_cost(drifting).ms == pytest.approx(0.0)


def test_single_disturbance_adds_no_cost() -> None:
    steady = [StepBlock(on=on, step_ms=((30.0,) * 10,)) for on in (False, True)]
    hiccup = [steady[0], StepBlock(on=True, step_ms=((30.0,) * 9 + (500.0,),))]
    assert ablation_cost(hiccup).ms == ablation_cost(steady).ms == 0.0


def test_cost_without_a_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="no pair"):
        ablation_cost([StepBlock(on=True, step_ms=((1.0,),))])


@given(st.lists(STEP_MS, min_size=1, max_size=40))
def test_trimmed_mean_lies_between_the_extremes(values: list[float]) -> None:
    assert min(values) * (1 - 1e-9) <= trimmed_mean(values) <= max(values) * (1 + 1e-9)


@given(st.lists(st.tuples(STEP_MS, STEP_MS), min_size=1, max_size=6), st.floats(-50, 50))
def test_cost_does_not_depend_on_a_constant_added_to_all_steps(pairs: list[tuple[float, float]], shift: float) -> None:
    shifted = [(off + shift, on + shift) for off, on in pairs]
    assert ablation_cost(blocks(*shifted)).ms == pytest.approx(ablation_cost(blocks(*pairs)).ms, abs=1e-6)


@pytest.mark.parametrize(("true_ms", "allowed_ms"), [(26.0, 2.6), (4.0, 1.0), (10.0, 1.0)])
def test_gpu_tolerance_is_a_tenth_or_a_millisecond(true_ms: float, allowed_ms: float) -> None:
    assert tolerance_ms(cost(true_ms, 9.0), device="cuda", window_error_ms=9.0) == pytest.approx(allowed_ms)


def test_cpu_tolerance_follows_the_noise() -> None:
    assert tolerance_ms(cost(40.0, 0.1), device="cpu", window_error_ms=0.1) == pytest.approx(10.0)
    assert tolerance_ms(cost(40.0, 3.0), device="cpu", window_error_ms=4.0) == pytest.approx(15.0)
    # A step of 70 ms was recorded as 90 ms, so the tolerance is the difference of 20 ms.
    assert tolerance_ms(cost(40.0, 0.1), device="cpu", window_error_ms=0.1, window_ms=90.0) == pytest.approx(20.0)
    assert tolerance_ms(cost(26.0), device="cuda", window_error_ms=0.1, window_ms=90.0) == pytest.approx(2.6)


@pytest.mark.parametrize(
    ("ms", "finding", "others", "verdict", "why"),
    [
        (26.2, found(), (), "right", ()),
        (26.2, found(ms=23.6), (), "right", ()),
        (26.2, found(ms=23.0), (), "wrong", ("3.2 ms too little",)),
        (26.2, found(ms=30.2), (), "wrong", ("4.0 ms too much",)),
        (26.2, found(cause="compute"), (), "wrong", ("cause 'compute' instead of 'input'",)),
        (26.2, found(ranks=(0, 2)), (), "wrong", ("ranks 0, 2 instead of 2",)),
        (26.2, found(code="input-bound"), (), "wrong", ("input-bound instead of straggler",)),
        (26.2, None, (), "wrong", ("not found: 26.2 ms of 56.2",)),
        (0.8, None, (), "too small", ()),
        (0.8, found(ms=0.9), (), "right", ()),
        (26.2, found(), (found(code="launch-bound", ms=5.0),), "wrong", ("false alarm: launch-bound, 5.0 ms",)),
    ],
)
def test_verdict_depends_on_cost_finding_and_false_alarms(
    ms: float, finding: Found | None, others: tuple[Found, ...], verdict: str, why: Any
) -> None:
    assert compare(cost(ms), LATE, finding, others, tolerance=max(0.1 * ms, 1.0), alarm=1.5) == (verdict, why)


def test_alarm_in_a_clean_run_is_wrong() -> None:
    clean = ExpectedFinding(code=None, ranks=())
    assert compare(cost(0.1), clean, None, (), tolerance=1.0, alarm=1.5) == ("right", ())
    verdict, why = compare(cost(0.1), clean, found(ms=2.0), (), tolerance=1.0, alarm=1.5)
    assert (verdict, why) == ("wrong", ("false alarm: straggler, 2.0 ms",))


def test_found_amount_may_include_the_loss_of_the_clean_job() -> None:
    tiny = ExpectedFinding(code="launch-bound", ranks=(2,))
    for ms, verdict in ((26.0, "right"), (33.0, "right"), (38.5, "right"), (41.0, "wrong"), (23.0, "wrong")):
        one = found(code="launch-bound", ms=ms)
        assert compare(cost(26.2), tiny, one, (), tolerance=2.6, alarm=1.5, included_ms=12.0)[0] == verdict


def test_alternative_of_the_expected_finding_is_right() -> None:
    either = ExpectedFinding(code="slow-copy", ranks=(2,), or_else={"host-sync": ("aten::to",)})
    for one, why in (
        (found(code="host-sync", cause="aten::to"), ()),
        (found(code="host-sync", cause="aten::item"), ("cause 'aten::item' instead of 'aten::to'",)),
        (found(code="launch-bound"), ("launch-bound instead of slow-copy",)),
    ):
        assert compare(cost(26.0), either, one, (), tolerance=2.6, alarm=1.5)[1] == why


def analysis(*findings: Finding) -> Analysis:
    steps = Steps(analysed=6, mean_ms=58.0, median_ms=58.0, corrected_mean_ms=56.0)
    return Analysis(
        framework="pytorch", world_size=4, ranks_present=(0, 1, 2, 3), steps=steps, devices=(), findings=findings
    )


def ablation(device: Any = "cuda") -> Ablation:
    """Return blocks of steps of 30 and 56 ms, without and with a late loader on rank 2 of 4."""
    return Ablation(
        fault=FaultPlan(name="late-loader-one", kind="late-loader", amount=1.2, ranks=(2,)),
        workload="resnet50",
        device=device,
        device_name="a device",
        world_size=4,
        amount_ms=36.0,
        blocks=tuple(blocks((30, 56), (30, 56), ranks=4)),
    )


def finding(code: str, ms: float, **changes: Any) -> Finding:
    given: dict[str, Any] = {"code": code, "severity": "warning", "recoverable_ms_per_step": ms}
    return Finding(**(given | changes))


def test_row_omits_findings_below_the_alarm_level() -> None:
    late = finding("straggler", 25.0, ranks=(2,), cause="input")
    small = finding("slow-copy", 0.7)
    gone = finding("launch-bound", 12.0, severity="info")
    row = judge(ablation(), LATE, analysis(late, gone, small), window_error_ms=0.1, run_dir="resnet50/late-loader-one")
    assert (row.verdict, row.why, row.others) == ("right", (), ())
    assert row.found is not None
    assert (row.found.code, row.true.ms, row.tolerance_ms) == ("straggler", 26.0, 2.6)
    assert row.alarm_ms == pytest.approx(2.8)


def test_noise_on_cpus_raises_the_alarm_level() -> None:
    jitter = finding("straggler", 6.0, ranks=(0, 1))
    expected = ExpectedFinding(code=None, ranks=())
    assert judge(ablation("cpu"), expected, analysis(jitter), window_error_ms=0.1).verdict == "wrong"
    assert judge(ablation("cpu"), expected, analysis(jitter), window_error_ms=3.0).verdict == "right"
    assert judge(ablation("cuda"), expected, analysis(jitter), window_error_ms=3.0).verdict == "wrong"


def test_clean_communication_cost_is_the_difference_to_a_job_without_communication() -> None:
    exchange = communication_cost(
        ablation_cost(blocks((28.3, 28.4), (28.5, 28.4))), ablation_cost(blocks((26.6, 42.3), (26.6, 42.5)))
    )
    assert exchange.ms == pytest.approx(1.8)
    assert exchange.standard_error_ms == pytest.approx(math.hypot(0.1, 0.1))


def test_right_finding_below_the_noise_is_too_noisy_to_judge() -> None:
    """The fault costs 26 of 56 ms. Findings below three standard errors of the recorded steps do not count."""
    late = finding("straggler", 24.0, ranks=(2,), cause="input")
    verdicts = [
        judge(ablation("cpu"), LATE, analysis(late), window_error_ms=error).verdict for error in (0.1, 8.5, 9.0)
    ]
    assert verdicts == ["right", "too noisy", "too small"]
    other = finding("launch-bound", 24.0, ranks=(2,))
    assert judge(ablation("cpu"), LATE, analysis(other), window_error_ms=8.5).verdict == "wrong"


def test_right_alternative_of_the_first_finding_counts_as_first() -> None:
    launching = finding("launch-bound", 25.5, ranks=(0, 1, 2, 3), instead=("straggler",))
    late = finding("straggler", 25.4, ranks=(2,), cause="input", instead=("launch-bound",))
    row = judge(ablation(), LATE, analysis(launching, late), window_error_ms=0.1)
    assert row.found is not None
    assert (row.verdict, row.found.code, row.others) == ("right", "straggler", ())
    apart = [finding("launch-bound", 25.5), finding("straggler", 25.4, ranks=(2,), cause="input")]
    row = judge(ablation(), LATE, analysis(*apart), window_error_ms=0.1)
    assert row.why == ("launch-bound instead of straggler",)
    assert [other.code for other in row.others] == ["straggler"]


def fix(of: Finding, step_ms: float) -> Fix:
    return Fix(code=of.code, ranks=of.ranks, cause=of.cause, step_ms=step_ms, then="compute")


@pytest.mark.parametrize(("after_it_ms", "verdict"), [(28.0, "right"), (26.0, "wrong"), (None, "right")])
def test_finding_that_saves_little_after_the_first_fix_is_no_false_alarm(
    after_it_ms: float | None, verdict: str
) -> None:
    late = finding("straggler", 26.0, ranks=(2,), cause="input")
    exchange = finding("communication-bound", 6.0, ranks=(0, 1, 2, 3), cause="transfer")
    path = [fix(late, 30.0), *([fix(exchange, after_it_ms)] if after_it_ms else [])]
    analysed = msgspec.structs.replace(analysis(late, exchange), next=tuple(path))
    assert judge(ablation(), LATE, analysed, window_error_ms=0.1).verdict == verdict
    alone = analysis(late, exchange)
    assert judge(ablation(), LATE, alone, window_error_ms=0.1).verdict == "wrong"


OWN = {"launch-bound": FaultCost(clean_ms=18.0, faulty_ms=30.0, ms=12.0, standard_error_ms=0.1)}


@pytest.mark.parametrize(
    ("ms", "own", "verdict"), [(12.5, OWN, "right"), (6.0, OWN, "right"), (16.0, OWN, "wrong"), (12.5, {}, "wrong")]
)
def test_launch_overhead_of_the_clean_job_is_no_false_alarm(ms: float, own: Any, verdict: str) -> None:
    slow_host = finding("launch-bound", ms, ranks=(0, 1, 2, 3), cause="tiny kernels")
    clean = ExpectedFinding(code=None, ranks=())
    row = judge(ablation(), clean, analysis(slow_host), window_error_ms=0.1, clean_losses=own)
    assert (row.verdict, row.launching_ms) == (verdict, 12.0 if own else None)


def rows_of(*pairs: tuple[ExpectedFinding, Found | None]) -> list[SelftestRow]:
    """Return a row for each pair of an expected and a reported finding."""
    return [
        SelftestRow(
            workload="gpt",
            fault="a fault",
            expected=expected,
            true=cost(26.0),
            found=one,
            tolerance_ms=2.6,
            alarm_ms=1.5,
            verdict="right",
        )
        for expected, one in pairs
    ]


def test_scores_count_each_aspect_separately() -> None:
    clean = ExpectedFinding(code=None, ranks=())
    rows = rows_of((LATE, found()), (LATE, found(ranks=(1,), ms=31.0)), (LATE, None), (clean, None), (clean, found()))
    behind = msgspec.structs.replace(rows[0], found=found(code="launch-bound"), others=(found(cause="copy", ms=28.2),))
    small = msgspec.structs.replace(rows[2], true=cost(1.0))
    scores = {score.name: (score.right, score.of) for score in count_scores([*rows, behind, small])}
    assert scores == {
        "found": (3, 4),
        "code first": (2, 4),
        "ranks and cause right": (1, 4),
        "amount within 10 % or 1 ms": (2, 4),
        "amount within 25 % or 2 ms": (3, 4),
        "rows with a false alarm": (2, 7),
    }


def test_scores_without_rows_have_full_intervals() -> None:
    assert all((score.right, score.of, score.low, score.high) == (0, 0, 0.0, 1.0) for score in count_scores([]))
