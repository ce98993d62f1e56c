"""Test what limits a diagnosis: unusable simulations, data of low confidence, and small parts of the step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpudiag.analysis.diagnosis import engine
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.engine import (
    _graded,
    _in_recorded_terms,
    _overhead,
    _reason_not_to_simulate,
    _weakened,
)
from gpudiag.analysis.diagnosis.explained import _by_amount, likely_causes, with_unseen_communication
from gpudiag.analysis.diagnosis.rules.rule import CannotTell
from gpudiag.model.analysis import BUCKETS, Finding, Validity
from gpudiag.model.timeline import UNKNOWN
from gpudiag.units import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Sequence


def simulation(
    simulated: float, corrected: float = 100.0, timed: float | None = None, not_recorded: float = 0.0
) -> Any:
    """Fake a what-if with step times in ms: simulated, without profiler overhead (`corrected`), and unprofiled.

    `not_recorded` is the wait for input in ms that only unprofiled steps have.
    """
    return SimpleNamespace(
        simulated_ms=simulated,
        corrected_ms=corrected,
        per_event_ns=1500.0,
        unprofiled_ms=timed,
        input_not_recorded_ms=not_recorded,
    )


def job(slowest: float = 100.0, unprofiled: float | None = None) -> Any:
    timeline = SimpleNamespace(framework="pytorch")
    return SimpleNamespace(slowest_ms=slowest, unprofiled_ms=unprofiled, lines=None, timeline=timeline)


@pytest.mark.parametrize(("simulated", "tells"), [(100, True), (125, True), (125.1, False), (75, True), (74.9, False)])
def test_simulation_within_a_quarter_of_the_recorded_step_is_used(simulated: float, *, tells: bool) -> None:
    reason = _reason_not_to_simulate(job(), simulation(simulated))
    assert (not reason) == tells
    if not tells:
        assert f"({simulated:.1f} and 100.0 ms)" in reason
    assert "two marked steps" in _reason_not_to_simulate(job(), None)


@pytest.mark.parametrize(("corrected", "told"), [(95.0, True), (95.1, False)])
def test_overhead_is_reported_from_five_percent_on(corrected: float, *, told: bool) -> None:
    warnings = _overhead(job(), simulation(100.0, corrected))
    assert [warning.code for warning in warnings] == (["profiler-overhead"] if told else [])
    if told:
        assert (
            "takes 100.0 ms while profiling and about 95.0 ms without, assuming 1.5 µs overhead" in warnings[0].message
        )
        (timed,) = _overhead(job(unprofiled=94.0), simulation(100.0, corrected))
        assert "; 94.0 ms were measured without profiling" in timed.message


def sure(
    code: str = "host-stall",
    gain: float | None = 10.0,
    *,
    cause: str = "",
    codes: Sequence[str] = (),
    slowest: float = 100.0,
    simulated: float = 100.0,
    corrected: float = 100.0,
    unprofiled: float | None = 100.0,
    confidence: Any = "high",
    **evidence: Any,
) -> str:
    """Return the confidence of a finding that saves `gain` ms, in a case with the warnings `codes`.

    Step times are in ms: `slowest` of the slowest device as recorded, all others as in `simulation`.
    """
    finding = Finding(
        code=code, severity="info", cause=cause, recoverable_ms_per_step=gain, confidence=confidence, evidence=evidence
    )
    weaker = _weakened(job(slowest, unprofiled), simulation(simulated, corrected, unprofiled), finding, {*codes})
    return str(weaker.confidence)


def test_each_data_problem_lowers_confidence_by_one_grade() -> None:
    assert sure() == "high"
    assert sure(simulated=103.0) == "high"
    assert sure(simulated=103.1) == "medium"
    assert sure(simulated=103.1, confidence="medium") == sure(simulated=103.1, confidence="low") == "low"
    weakening, between = min(engine._WEAKENING), min(engine._WEAKENING_BETWEEN_RANKS - engine._WEAKENING)
    assert sure(codes=[weakening]) == "medium"
    assert sure("straggler", codes=[between]) == "medium"
    assert sure(codes=[between]) == "high"
    assert sure("straggler", codes=[weakening, between]) == "low"
    assert sure("straggler", codes=[weakening, between], simulated=110.0) == "low"
    assert sure(codes=["mixed-runs"]) == "low"
    assert sure(codes=["mixed-runs"], simulated=110.0, timed_steps=9) == "high"


@pytest.mark.parametrize(("gain", "confidence"), [(5.0, "high"), (4.9, "medium"), (None, "medium")])
def test_large_overhead_of_a_host_is_doubted(gain: float | None, confidence: str) -> None:
    """The profiler takes 5 of 100 ms, and there are no unprofiled steps."""
    assert sure("host-sync", gain, corrected=95.0, unprofiled=None) == confidence
    assert sure("host-stall", gain, corrected=95.0, unprofiled=None) == "high"
    if gain:
        assert sure("host-sync", gain, corrected=95.0, unprofiled=95.0) == "high"
        assert sure("straggler", gain, cause="launch", corrected=95.0, unprofiled=95.0) == confidence
        assert sure("straggler", gain, cause="input", corrected=95.0, unprofiled=95.0) == "high"


def test_longer_unprofiled_steps_lower_confidence_in_an_amount() -> None:
    assert sure(gain=40.0, unprofiled=110.0) == "high"
    assert sure(gain=39.9, unprofiled=110.0) == "medium"
    assert sure(gain=None, unprofiled=110.0) == "high"
    assert sure(gain=39.9, unprofiled=110.0, longer_in_timed_steps_ms=10.0) == "high"


@pytest.mark.parametrize(
    ("share", "own", "confidence"),
    [
        (1.0, "high", "high"),
        (1.0, "medium", "medium"),
        (0.7, "high", "medium"),
        (0.1, "high", "low"),
        (0.7, "low", "low"),
    ],
)
def test_confidence_is_the_lowest_of_rule_and_variations(
    monkeypatch: pytest.MonkeyPatch, share: float, own: Any, confidence: str
) -> None:
    monkeypatch.setattr(engine, "survival", lambda *_: [share])
    found: Any = SimpleNamespace(finding=Finding(code="a", severity="info", confidence=own, evidence={"x": 1}))
    (one,) = _graded(simulation(100.0), [found])
    assert (one.confidence, one.evidence) == (confidence, {"x": 1, "confirmed_by_variations_percent": 100 * share})


def tracks(*devices: tuple[int, dict[str, Sequence[float]]]) -> Any:
    """Return the attribution of devices (rank, ms of each bucket by step); a step is the sum of its buckets."""
    of = []
    for rank, buckets in devices:
        columns = np.array([buckets.get(bucket, [0.0] * len(next(iter(buckets.values())))) for bucket in BUCKETS]).T
        rows = columns * NS_PER_MS
        of.append(SimpleNamespace(rank=rank, buckets_ns=rows, step_ns=rows.sum(axis=1), queued=None))
    return SimpleNamespace(tracks=of)


def case(attribution: Any, **timeline: Any) -> Case:
    fake: Any = SimpleNamespace(**timeline)
    return Case(timeline=fake, attribution=attribution)


def test_step_of_a_case_is_the_mean_or_the_slowest_device() -> None:
    of = case(tracks((0, {"compute": [10, 20], "input": [2, 4]}), (1, {"compute": [30, 30]})))
    assert (of.step_ms, of.slowest_ms) == (24, 30)
    nothing = case(tracks())
    assert (nothing.step_ms, nothing.slowest_ms) == (0, 0)


def test_exposed_time_of_a_rank_is_from_its_slowest_device() -> None:
    of = case(
        tracks((0, {"copy": [1, 3], "input": [4, 4]}), (0, {"copy": [1, 0], "input": [1, 1]}), (3, {"copy": [7, 7]}))
    )
    assert of.exposed_ms("copy", "input") == {0: 6, 3: 7}
    assert of.exposed_ms("copy") == {0: 2, 3: 7}


def collectives(*calls: tuple[int, int, int, float]) -> Any:
    """Make a device's collectives from (instance, ranks in the group or 0, last arrival or -1, end) in ns.

    Every collective starts at 10 ns.
    """
    instance, ranks, arrival, end = np.array(calls, np.int64).T
    kinds = sorted({*ranks.tolist()})
    table = SimpleNamespace(
        instance=instance,
        start=np.full(len(calls), 10),
        last_arrival=arrival,
        end=end,
        kinds=[("all_reduce", "0", of, 8) for of in kinds],
        kind=np.array([kinds.index(of) for of in ranks.tolist()]),
    )
    return SimpleNamespace(collectives=table)


def unseen(*of: Any, world: int = 2) -> float:
    return case(tracks(), tracks=of, world_size=world, left_out=frozenset()).unseen_share()


def test_transfer_with_missing_ranks_counts_as_unseen() -> None:
    whole = collectives((0, 2, 20, 60), (1, 2, 20, 60))
    assert unseen(whole, whole) == 0
    assert unseen(whole, collectives((0, 2, 20, 60))) == pytest.approx(1 / 3)
    assert unseen(collectives((0, 0, 20, 60)), collectives((0, 0, 20, 60)), world=3) == 1
    assert unseen(collectives((0, 1, 20, 60), (UNKNOWN, 1, UNKNOWN, 40))) == pytest.approx(30 / 70)
    assert unseen(collectives((0, 2, 20, 20))) == 0


def shares(*, world: int = 1, track: Any = None, unit: str = "step", **buckets: float) -> Case:
    """Make a case of two steps of rank 0 with `buckets` in ms; `track` is the rank's device with its collectives."""
    return case(
        tracks((0, {bucket: [ms] * 2 for bucket, ms in buckets.items()})),
        ranks_present=(0,),
        world_size=world,
        framework="pytorch",
        unit=unit,
        tracks=() if track is None else (track,),
    )


@pytest.mark.parametrize(
    ("ms", "codes"),
    [
        (4.9, ["compute-bound"]),
        (5.0, ["input-bound", "compute-bound"]),
        (45.9, ["input-bound", "compute-bound"]),
        (46.0, ["input-bound"]),
    ],
)
def test_large_buckets_are_likely_causes(ms: float, codes: list[str]) -> None:
    of = shares(compute=96 - ms, input=ms, copy=4)
    causes = {finding.code: finding for finding in likely_causes(of, "why")}
    assert list(causes) == codes
    if "input-bound" in causes:
        likely = causes["input-bound"]
        assert (likely.confidence, likely.evidence) == ("low", {"reason": "why", "exposed_ms": ms, "bucket": "input"})
        assert likely.title == f"waiting for data: up to {ms:.1f} ms ({ms:.0f} % of a step)"
        assert likely.recoverable_ms_per_step is None
        assert (likely.cause, likely.ranks) == ("loader", (0,))
    if "compute-bound" in causes:
        assert causes["compute-bound"].title.startswith(f"compute-bound ({96 - ms:.0f} %)")
    assert likely_causes(case(tracks(), ranks_present=(), world_size=1), "") == ()


def test_likely_causes_are_sorted_with_compute_last() -> None:
    of = shares(compute=60, copy=10, idle=25, sync=5)
    assert [cause.code for cause in likely_causes(of, "")] == ["host-stall", "slow-copy", "host-sync", "compute-bound"]
    assert likely_causes(of, "")[-1].title == "compute-bound (60 %); nothing else takes over 25 %"


def test_compute_is_no_likely_cause_in_untrusted_data() -> None:
    assert [cause.code for cause in likely_causes(shares(compute=80, copy=20), "", trusted=False)] == ["slow-copy"]
    assert likely_causes(shares(compute=100), "", trusted=False) == ()


@pytest.mark.parametrize(
    ("unit", "words"), [("step", "a step"), ("repeated-unit", "a repeated unit"), ("recording", "the recording")]
)
def test_likely_cause_is_a_share_of_the_analysed_steps(unit: str, words: str) -> None:
    (finding,) = likely_causes(shares(unit=unit, compute=40, copy=60), "")
    assert finding.title == f"copies between CPU and GPU: up to 60.0 ms (60 % of {words})"


def test_likely_cause_of_a_cpu_process_mentions_no_gpu() -> None:
    of = shares(track=SimpleNamespace(is_cpu=True), compute=40, idle=60)
    (finding,) = likely_causes(of, "")
    assert finding.title == "time in which the training thread records nothing: up to 60.0 ms (60 % of a step)"


def reducing(took_ms: float, device_name: str = "") -> Any:
    """Make a device with two all-reduces of 100 MB in `took_ms` each, and a longer all-reduce of unknown size."""
    end = np.array([took_ms * NS_PER_MS, took_ms * NS_PER_MS, 1000 * NS_PER_MS])
    table = SimpleNamespace(
        start=np.zeros(3),
        end=end,
        kind=np.array([0, 0, 1]),
        kinds=[("all_reduce", "0", 2, 100_000_000), ("all_reduce", "1", 2, None)],
    )
    return SimpleNamespace(is_cpu=False, device_name=device_name, collectives=table)


@pytest.mark.parametrize(
    ("world", "track", "words"),
    [
        (1, None, "communication not overlapped with compute"),
        (2, None, "communication, or waiting in it"),
        (2, reducing(10), "communication, or waiting in it (all_reduce at 10 GB/s)"),
        (
            2,
            reducing(10, "NVIDIA H200"),
            "communication, or waiting in it (all_reduce at 10 of 450 GB/s, which points to waiting)",
        ),
        (2, reducing(1, "NVIDIA H200"), "communication, or waiting in it (all_reduce at 100 of 450 GB/s)"),
    ],
)
def test_communication_of_missing_ranks_may_be_waiting(world: int, track: Any, words: str) -> None:
    of = shares(world=world, track=track, compute=40, communication_transfer=60)
    (finding,) = likely_causes(of, "")
    assert finding.title == f"{words}: up to 60.0 ms (60 % of a step)"
    assert finding.cause == ("transfer" if world == 1 else None)
    assert ("Record all ranks" in finding.advice[0]) == (world == 2)


@pytest.mark.parametrize(("ms", "found"), [(4.9, False), (5.0, True)])
def test_missing_ranks_are_reported_by_share_if_the_simulation_is_unusable(ms: float, *, found: bool) -> None:
    of = shares(world=2, compute=100 - ms, communication_transfer=ms)
    findings = with_unseen_communication(of, ())
    assert [(finding.code, finding.cause, finding.recoverable_ms_per_step) for finding in findings] == (
        [("communication-bound", None, None)] if found else []
    )
    known = Finding(code="communication-bound", severity="info")
    assert with_unseen_communication(of, [known]) == [known]
    assert not with_unseen_communication(shares(compute=100 - ms, communication_transfer=ms), ())


@pytest.mark.parametrize(
    ("unit", "title"),
    [
        ("step", "saves 3 ms per step"),
        ("repeated-unit", "saves 3 ms per repeated unit"),
        ("recording", "saves 3 ms per recording"),
    ],
)
def test_findings_of_a_repeated_unit_mention_no_steps(unit: Any, title: str) -> None:
    timeline: Any = SimpleNamespace(unit=unit, traces=())
    assert (
        _in_recorded_terms(Finding(code="host-sync", severity="info", title="saves 3 ms per step"), timeline).title
        == title
    )


def test_findings_of_inference_mention_no_training() -> None:
    timeline: Any = SimpleNamespace(unit="step", traces=(SimpleNamespace(workload="inference"),))
    found = Finding(code="host-stall", severity="info", title="the training thread stalls")
    assert _in_recorded_terms(found, timeline).title == "the main thread stalls"


def test_findings_without_savings_precede_findings_that_save_less_than_half_of_their_share() -> None:
    def finding(code: str, **known: Any) -> Finding:
        return Finding(code=code, severity="info", **known)

    saving = [finding("a", recoverable_ms_per_step=10.0), finding("b", recoverable_ms_per_step=4.9)]
    share = finding("c", evidence={"exposed_ms": 10.0})
    assert [item.code for item in _by_amount([*saving, share])] == ["a", "c", "b"]
    assert [item.code for item in _by_amount([share])] == ["c"]
    assert [item.code for item in _by_amount([*saving, finding("d", evidence={"exposed_ms": 9.8})])] == ["a", "b", "d"]


@pytest.mark.parametrize(
    ("told", "doubted", "unexplained", "conclusive"),
    [
        ((), False, False, True),
        (("mixed-runs",), False, False, False),
        (("partial-coverage",), False, False, False),
        ((), True, False, False),
        ((), False, True, False),
    ],
)
def test_doubted_findings_prevent_conclusions(
    monkeypatch: pytest.MonkeyPatch, told: tuple[str, ...], doubted: bool, unexplained: bool, conclusive: bool
) -> None:
    asked: list[bool] = []

    class Concluding:
        def conclude(self, _case: Any, _findings: Any, *, conclusive: bool) -> list[Finding]:
            asked.append(conclusive)
            return []

    left = SimpleNamespace(bucket="sync", ms=7.0, unexplained_ms=1.0, note="so it is")
    done = SimpleNamespace(bucket="input", ms=7.0, unexplained_ms=0.0, note="")
    monkeypatch.setattr(engine, "RULES", ())
    monkeypatch.setattr(engine, "CONCLUSION", Concluding)
    monkeypatch.setattr(engine, "score", lambda *_: ([], [Validity(code="x", message="y")] if doubted else []))
    monkeypatch.setattr(engine, "REVISIONS", ())
    monkeypatch.setattr(engine, "explain", lambda *_: (done, left) if unexplained else (done,))
    monkeypatch.setattr(engine, "path_of_fixes", lambda *_: ())
    of: Any = job()
    of.what_if, of.outlier_steps = simulation(100.0), "uneven" if told else ""
    of.timeline = SimpleNamespace(validity=[Validity(code=code, message="") for code in told], unit="step")
    diagnosis = engine.diagnose(of)
    assert asked == [conclusive]
    codes = [
        *(["x"] if doubted else []),
        *(["unexplained"] if unexplained else []),
        *(["uneven-steps"] if told else []),
    ]
    assert [warning.code for warning in diagnosis.validity] == codes
    if unexplained:
        assert diagnosis.validity[-1].message == "sync takes 7.0 ms of a step: so it is"


@pytest.mark.parametrize("told", [(), ("mixed-runs",)])
def test_mixed_runs_disable_rules_between_ranks(monkeypatch: pytest.MonkeyPatch, told: tuple[str, ...]) -> None:
    proposed: list[str] = []

    def rule(named: str) -> Any:
        """Return a rule that proposes its code, and also abstains."""

        class Rule:
            code = named

            def examine(self, _case: Any, _what_if: Any) -> list[Any]:
                return [named, CannotTell("of " + named)]

        return Rule

    def score(_what_if: Any, proposals: list[Any], _significance: Any) -> tuple[list[Any], list[Any]]:
        proposed.extend(proposals)
        return [], []

    monkeypatch.setattr(engine, "RULES", (rule("straggler"), rule("host-stall"), rule("communication-bound")))
    monkeypatch.setattr(engine, "score", score)
    monkeypatch.setattr(engine, "REVISIONS", ())
    monkeypatch.setattr(engine, "explain", lambda *_: ())
    monkeypatch.setattr(engine, "path_of_fixes", lambda *_: ())
    monkeypatch.setattr(engine, "CONCLUSION", lambda: SimpleNamespace(conclude=lambda *_, **__: []))
    of: Any = job()
    of.what_if, of.outlier_steps = simulation(100.0), ""
    of.timeline = SimpleNamespace(validity=[Validity(code=code, message="") for code in told], unit="step")
    messages = {warning.code: warning.message for warning in engine.diagnose(of).validity}
    assert proposed == (["host-stall"] if told else ["straggler", "host-stall", "communication-bound"])
    assert messages["cannot-tell:host-stall"] == "of host-stall"
    for code in ("straggler", "communication-bound"):
        assert (messages[f"cannot-tell:{code}"] == f"of {code}") != bool(told)
