"""Test which buckets (parts) of a step of 100 ms are explained, with values just below and above each limit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpudiag.analysis.diagnosis import explained
from gpudiag.analysis.diagnosis.explained import explain, pace_setter
from gpudiag.intervals import EMPTY, as_set
from gpudiag.model.analysis import BUCKETS, Finding
from gpudiag.units import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpudiag.model.analysis import Explained

Gone = frozenset[str]


def case_of(*devices: dict[str, float], queued: float = 0.0) -> Any:
    """Make devices of two steps, each given as bucket → ms; the rest of the 100 ms is compute.

    `queued` is the time in ms per step in which a device is idle although kernels are queued.
    """
    tracks = []
    for buckets in devices:
        ms = {"compute": 100 - sum(buckets.values()), **buckets}
        row = [ms.get(bucket, 0.0) * NS_PER_MS for bucket in BUCKETS]
        spans = as_set([(0, round(2 * queued * NS_PER_MS))]) if queued else EMPTY
        tracks.append(SimpleNamespace(buckets_ns=np.array([row, row]), step_ns=np.full(2, sum(row)), queued=spans))
    return SimpleNamespace(attribution=SimpleNamespace(tracks=tracks))


class Job:
    """Replace the what-if simulation. A scenario is the set of removed causes.

    A step takes the sum of the `parts` (name → ms) that are not removed, but at least `least` ms. The profiler adds
    `added` ms. In the recorded step, removing the cause "bucket" saves `hidden` ms more.
    """

    corrected: Gone = frozenset()
    recorded: Gone = frozenset({"measured"})

    def __init__(self, least: float = 0.0, added: float = 0.0, hidden: float = 0.0, **parts: float) -> None:
        self.least, self.parts, self.hidden = least, parts, hidden
        self.now_ms = self.each_step_ms([self.corrected])[0]
        self.simulated_ms = self.now_ms + added

    @property
    def model(self) -> Job:
        return self

    def each_step_ms(self, many: Iterable[Gone]) -> list[float]:
        return [
            max(sum(ms for part, ms in self.parts.items() if part not in gone), self.least)
            + (self.hidden if self.recorded <= gone and "bucket" not in gone else 0.0)
            for gone in many
        ]


def gone(part: str) -> Any:
    return lambda _, costs: costs | {part}


def finding(code: str, gain: float) -> Finding:
    return Finding(code=code, severity="info", recoverable_ms_per_step=gain)


def explanation_of(
    monkeypatch: pytest.MonkeyPatch,
    bucket: str,
    ms: float,
    *findings: Finding,
    job: Job | None = None,
    queued: float = 0.0,
    weighed: tuple[str, ...] = (),
) -> Explained | None:
    """Return the explanation of a bucket. For each code in `weighed`, a finding removes the cause of the same name."""
    codes, _ = explained._BY[bucket]
    monkeypatch.setitem(explained._BY, bucket, (codes, (gone("bucket"),)))
    found: Any = [
        SimpleNamespace(proposal=SimpleNamespace(edit=gone(code)), finding=finding(code, 0.0)) for code in weighed
    ]
    of: Any = job or Job(rest=100)
    every = explain(case_of({bucket: ms}, queued=queued), of, found, findings)
    return every[0] if every else None


def test_pace_setter_is_the_device_that_waits_least() -> None:
    buckets, step_ms = pace_setter(case_of({"communication_wait": 30}, {"communication_wait": 10, "input": 20}))
    assert (buckets["communication_wait"], buckets["input"], buckets["compute"], step_ms) == (10, 20, 70, 100)
    nothing = pace_setter(case_of())
    assert (set(nothing[0].values()), nothing[1]) == ({0}, 0)


def test_bucket_needs_an_explanation_from_five_percent_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert explanation_of(monkeypatch, "input", 4.9) is None
    explanation = explanation_of(monkeypatch, "input", 5.0)
    assert explanation is not None
    assert (explanation.ms, explanation.by, explanation.unexplained_ms) == (5, (), 0)
    assert explain(case_of({}), Job(rest=100), [], []) == ()  # type: ignore[arg-type]  # a fake what-if


@pytest.mark.parametrize(
    ("ms", "gain", "left"), [(10, 5.0, 0), (10, 4.9, 5.1), (40, 30.0, 0), (40, 29.9, 10.1), (10, 0.9, 10)]
)
def test_bucket_is_explained_if_the_remainder_is_small(
    monkeypatch: pytest.MonkeyPatch, ms: float, gain: float, left: float
) -> None:
    explanation = explanation_of(monkeypatch, "input", ms, finding("input-bound", gain), finding("host-stall", 50.0))
    assert explanation is not None
    assert explanation.unexplained_ms == pytest.approx(left)
    assert explanation.by == (("input-bound",) if gain > 1 else ())


def test_explaining_findings_are_summed_and_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    both = finding("straggler", 8.0), finding("input-bound", 8.0), finding("straggler", 8.0)
    explanation = explanation_of(monkeypatch, "input", 30, *both)
    assert explanation is not None
    assert (explanation.by, explanation.unexplained_ms) == (("straggler", "input-bound"), 0)


def test_gaps_between_queued_kernels_explain_idle_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    explanation = explanation_of(monkeypatch, "idle", 20, queued=15.0)
    assert explanation is not None
    assert (explanation.unexplained_ms, explanation.note) == (
        0,
        "15.0 ms of it are gaps between kernels that were already queued",
    )
    explanation = explanation_of(monkeypatch, "idle", 20, queued=14.9)
    assert explanation is not None
    assert explanation.unexplained_ms == pytest.approx(5.1)
    explanation = explanation_of(monkeypatch, "input", 20, queued=15.0)
    assert explanation is not None
    assert explanation.unexplained_ms == 20


def test_profiler_overhead_explains_the_time_that_it_added(monkeypatch: pytest.MonkeyPatch) -> None:
    explanation = explanation_of(monkeypatch, "launch", 20, job=Job(rest=100, added=15))
    assert explanation is not None
    assert (explanation.by, explanation.unexplained_ms) == (("profiler-overhead",), 0)
    explanation = explanation_of(monkeypatch, "launch", 20, job=Job(rest=100, added=10))
    assert explanation is not None
    assert (explanation.by, explanation.unexplained_ms) == (("profiler-overhead",), 10)
    explanation = explanation_of(monkeypatch, "launch", 20, job=Job(rest=100, added=0.9))
    assert explanation is not None
    assert (explanation.by, explanation.unexplained_ms) == ((), 20)
    # If findings explain enough, profiler overhead is not considered.
    explanation = explanation_of(monkeypatch, "launch", 20, finding("launch-bound", 16.0), job=Job(rest=100, added=15))
    assert explanation is not None
    assert explanation.by == ("launch-bound",)


@pytest.mark.parametrize(("hidden", "left"), [(12.0, 8.0), (20.0, 5.5), (0.0, 20.0)])
def test_device_bucket_is_explained_by_its_effect_on_the_recorded_step(
    monkeypatch: pytest.MonkeyPatch, hidden: float, left: float
) -> None:
    explanation = explanation_of(monkeypatch, "copy", 20, job=Job(rest=100, added=14.5, hidden=hidden))
    assert explanation is not None
    assert explanation.unexplained_ms == pytest.approx(left)


@pytest.mark.parametrize(("least", "behind"), [(90.1, True), (90.0, False)])
def test_bucket_hidden_behind_findings_is_explained_by_them(
    monkeypatch: pytest.MonkeyPatch, least: float, *, behind: bool
) -> None:
    """Without the bucket a step takes `least` ms, so removing the bucket saves half of the bucket or less."""
    job = Job(least, other=80, bucket=20)
    explanation = explanation_of(monkeypatch, "input", 20, job=job, weighed=("host-sync",))
    assert explanation is not None
    if behind:
        assert (explanation.by, explanation.unexplained_ms) == (("host-sync",), 0)
        assert explanation.note == (
            "hidden behind host-sync: removing it would save 9.9 ms per step now, and 9.9 ms once these are fixed"
        )
    else:
        assert (explanation.by, explanation.unexplained_ms) == ((), 20)
        assert explanation.note.startswith("no finding explains 20.0 ms of it")
    alone = explanation_of(monkeypatch, "input", 20, job=job)
    assert alone is not None
    assert alone.unexplained_ms == 20
