"""Test what unprofiled steps reveal about hosts and input, with run records of a few numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpudiag.analysis.diagnosis.unprofiled_steps import (
    UnprofiledInput,
    alone_waited_for,
    devices_set_pace,
    exposed_input_ms,
    fastest_host_ms,
    input_ms_above_most,
    later_host_ms,
    later_input_ms,
    loader_step_ms,
    recording_cost,
    recording_doubts,
    unprofiled_input,
    unprofiled_longer_ms,
    unprofiled_ranks,
)
from gpudiag.model.run import LoaderPace, RankRecord, RunRecord, StepTimes, UnprofiledSteps

if TYPE_CHECKING:
    from collections.abc import Sequence

Times = tuple[float, ...]


def times(*step_ms: float) -> StepTimes:
    mean_ms = sum(step_ms) / len(step_ms)
    return StepTimes(step_ms=step_ms, mean_ms=mean_ms, median_ms=mean_ms, standard_error_ms=0.0, jitter_ms=0.0)


def run(
    *timed: UnprofiledSteps | None, device: str = "cuda:0", light: Sequence[StepTimes | None] = (), notes: str = ""
) -> RunRecord:
    """Return a run record with one rank for each of `timed`, the unprofiled steps of the rank.

    `light` are the ranks' steps in kernel-only traces. `notes` states why all ranks but the first lack such a
    trace.
    """
    ranks = tuple(
        RankRecord(
            rank=rank,
            local_rank=rank,
            host="",
            pid=1,
            device=device,
            device_name="",
            timed=of,
            unprofiled=times(10.0 + rank),
            light=light[rank] if light else None,
            notes={"no-light-recording": notes} if notes and rank else {},
        )
        for rank, of in enumerate(timed)
    )
    return RunRecord(
        created="", command=(), workload="", framework="pytorch", strategy="", world_size=len(ranks), nodes=1,
        batch_size_per_device=None, ranks=ranks, status="complete",
    )  # fmt: skip


def host(*host_ms: float, lead: Times | None = None, fetching: Times | None = None) -> UnprofiledSteps:
    return UnprofiledSteps(host_ms=host_ms, lead_ms=lead, input_ms=fetching)


@pytest.mark.parametrize(
    ("timed", "longer"), [(None, 0.0), (90.0, 0.0), (102.0, 0.0), (102.1, 2.1), (150.0, 50.0), (0.0, 0.0)]
)
def test_unprofiled_steps_count_as_longer_above_two_percent(timed: float | None, longer: float) -> None:
    assert unprofiled_longer_ms(timed, 100.0) == pytest.approx(longer)


def test_fastest_step_of_each_timed_host() -> None:
    assert fastest_host_ms(run(host(5, 3, 4), None, host())) == {0: 3}
    assert fastest_host_ms(None) == {}


def test_later_input_is_the_excess_over_the_lower_median_of_ranks() -> None:
    of = run(*(host(1, 1, lead=(0.0, 0.0), fetching=(0.0, ms)) for ms in (2.0, 3.0, 9.0, 8.0)))
    assert later_input_ms(of, (2,)) == 6
    assert later_input_ms(of, (3, 2)) == 6
    assert later_input_ms(of, (0,)) == -1
    assert later_input_ms(of, (7,)) == later_input_ms(of, ()) == 0
    assert later_input_ms(None, (0,)) == later_input_ms(run(None), (0,)) == 0


def made(batch_ms: float, *, workers: int = 1, batches: int = 4) -> LoaderPace:
    return LoaderPace(workers=workers, batches=batches, batch_ms=batch_ms)


@pytest.mark.parametrize(
    ("loader", "step_ms"),
    [
        (None, None),
        (made(100), 100),
        (made(100, workers=2), 50),
        (made(100, batches=8), 200),
        (made(100, batches=5), 100),
        (made(100, batches=1), 100),
    ],
)
def test_loader_time_is_the_time_of_the_workers_per_batch(loader: LoaderPace | None, step_ms: float | None) -> None:
    assert loader_step_ms(UnprofiledSteps(host_ms=(1.0,) * 4, loader=loader)) == step_ms
    assert loader_step_ms(UnprofiledSteps(host_ms=(), loader=loader)) is None


def fetched(*fetching: Times, loaders: Sequence[LoaderPace | None] = ()) -> RunRecord:
    """Return a run on CPUs with input times (ms) per rank and step; rank r has steps of 10 + r ms."""
    pace = loaders or [None] * len(fetching)
    timed = (
        UnprofiledSteps(host_ms=(1.0,) * len(of), input_ms=of, loader=loader)
        for of, loader in zip(fetching, pace, strict=True)
    )
    return run(*timed, device="cpu")


def test_input_above_most_ranks_is_the_excess_over_the_usual_wait() -> None:
    steady = fetched((2, 2, 2, 2), (5, 6, 5, 6), (3, 3, 3, 3), (3, 4, 2, 3))
    assert input_ms_above_most(steady) == {0: 0, 1: pytest.approx(2.5), 2: 0, 3: 0}
    # The ranks take turns in waiting longer, so that the difference may be chance.
    assert input_ms_above_most(fetched((0, 9, 0, 9, 0, 9), (9, 0, 9, 0, 9, 1))) == {0: 0, 1: 0}
    # A rank waits for input if its wait is at least 5 % of the slowest rank's step of 11 ms: 0.55 ms, but not 0.54 ms.
    assert input_ms_above_most(fetched((0.55,) * 4, (9,) * 4)) == {0: 0, 1: pytest.approx(8.45)}
    assert input_ms_above_most(fetched((0.54,) * 4, (9,) * 4)) is None


def test_input_above_most_ranks_is_bounded_by_the_pace_of_workers() -> None:
    waits = ((0, 0, 0, 0), (9, 9, 9, 9))
    assert input_ms_above_most(fetched(*waits, loaders=(made(10.75), made(10.9)))) == {0: 0.25, 1: 0.25}
    assert input_ms_above_most(fetched(*waits, loaders=(made(4), made(10.9)))) == {0: 7, 1: 7}
    # Workers that need longer than the measured step give no bound, because too few of their batches were seen.
    assert input_ms_above_most(fetched(*waits, loaders=(made(12), made(12)))) == {0: 0, 1: 0}
    # The workers of one rank are unknown.
    assert input_ms_above_most(fetched(*waits, loaders=(None, made(10.9)))) is None
    # If both bounds apply, the smaller one holds.
    both = fetched((2, 2, 2, 2), (5, 5, 5, 5), loaders=(made(10), made(10)))
    assert input_ms_above_most(both) == {0: 0, 1: 1}


def test_exposed_and_total_input_time_of_unprofiled_steps() -> None:
    of = unprofiled_input(fetched((2, 2), (5, 7), (4, 4)))
    assert of == UnprofiledInput(exposed_ms=4, fetching_ms=4)
    on_gpus = run(host(1, 1, 1, lead=(3.0, 3.0, 3.0), fetching=(5.0, 5.0, 5.0)))
    assert unprofiled_input(on_gpus) == UnprofiledInput(exposed_ms=2, fetching_ms=5)
    assert unprofiled_input(None) is unprofiled_input(run(None)) is None
    # The result is unknown if a rank has no host lead, or if the only rank has a single step.
    assert unprofiled_input(run(host(1, 1, fetching=(5.0, 5.0)), host(1, 1), device="cpu")) is None
    assert unprofiled_input(fetched((5,))) is None


@pytest.mark.parametrize(("recorded", "missing"), [(6.5, 18), (0, 24), (19.4, 24 * 6.6 / 26), (19.5, 0), (30, 0)])
def test_unrecorded_input_is_the_exposed_share_of_the_missing_fetch_time(recorded: float, missing: float) -> None:
    of = UnprofiledInput(exposed_ms=24, fetching_ms=26)
    assert of.not_in_ms(recorded) == pytest.approx(missing)
    assert UnprofiledInput(exposed_ms=0, fetching_ms=0).not_in_ms(recorded) == 0


def test_input_above_most_ranks_is_unknown_without_times_of_all_ranks() -> None:
    assert input_ms_above_most(None) is None
    assert input_ms_above_most(fetched((5, 5))) is None
    assert input_ms_above_most(run(host(1, 1, fetching=(5.0, 5.0)), host(1, 1), device="cpu")) is None


def test_later_host_is_the_excess_over_the_lower_median_of_hosts() -> None:
    of = run(host(2), host(1, 5), host(9), host(8))
    assert later_host_ms(of, range(4), (2,)) == 6
    assert later_host_ms(of, range(4), (3, 1)) == 5
    assert later_host_ms(of, range(4), (9,)) == 0
    # There is no result if a rank was not timed, or for a single rank, which has no peers.
    assert later_host_ms(of, range(5), (2,)) is None
    assert later_host_ms(of, [2], (2,)) is None
    assert later_host_ms(of, [1, 2], (2,)) == 6
    assert later_host_ms(run(host(2), host()), range(2), (0,)) is None
    assert later_host_ms(None, range(2), (0,)) is None


def test_exposed_input_is_the_fetch_time_beyond_the_queued_device_work() -> None:
    def exposed(of: UnprofiledSteps, device: str = "cuda:0") -> Times:
        return exposed_input_ms(run(of, device=device).ranks[0])

    assert exposed(host(1, 1, 1, lead=(4.0, 1.0, 0.0), fetching=(9.0, 3.0, 3.0))) == (0, 2)
    assert exposed(host(1, lead=(4.0,))) == ()
    assert exposed(host(1, fetching=(4.0,))) == ()
    assert exposed(host(1, fetching=(4.0,)), "CPU") == (4,)


def leads(*ahead: str) -> RunRecord:
    """Return a run with a letter per step and host: `a` for a host lead of 2.5 ms over the device, `b` for 2.4 ms."""
    return run(*(host(*[50.0] * len(of), lead=tuple(2.5 if letter == "a" else 2.4 for letter in of)) for of in ahead))


@pytest.mark.parametrize(
    ("ahead", "late", "alone"),
    [
        (("aaaa", "bbbb"), (1,), True),
        (("aaab", "bbbb"), (1,), True),
        (("aabb", "bbbb"), (1,), False),
        (("aaab", "bbba"), (1,), False),  # in one step rank 0 is the late rank
        (("aaaa", "bbba"), (1,), True),
        (("aaa", "bbbb"), (1,), True),  # only steps timed on all ranks count
        (("aaaa", "bbbb", "abab"), (1, 2), False),
        (("aaaa", "bbbb", "abbb"), (1, 2), True),
        (("bbaa", "bbaa", "aabb", "abbb"), (2, 3), False),
        (("aabb", "aabb", "bbaa", "bbaa"), (2, 3), False),
        (("aaaa", "aaaa", "bbbb"), (0, 1, 2), False),
        (("aaaa", "aaaa"), (), False),
    ],
)
def test_only_stragglers_are_waited_for_in_most_steps(
    ahead: tuple[str, ...], late: tuple[int, ...], alone: bool
) -> None:
    assert alone_waited_for(leads(*ahead), range(len(ahead)), late) == alone


@pytest.mark.parametrize(
    ("ahead", "set_pace"),
    [
        (("aaaa",), True),
        (("aaab", "aaaa"), True),
        (("aabb", "aaaa"), False),
        (("aaaa", "bbbb"), False),
        (("aaa",), True),
    ],
)
def test_step_is_limited_by_devices_if_every_host_is_half_a_step_ahead_in_most_steps(
    ahead: tuple[str, ...], set_pace: bool
) -> None:
    of = run(
        *(host(*[50.0] * len(letters), lead=tuple(25.0 if at == "a" else 24.9 for at in letters)) for letters in ahead)
    )
    assert devices_set_pace(of) == set_pace


def test_step_is_not_limited_by_devices_if_a_host_was_not_timed() -> None:
    timed = host(50.0, lead=(50.0,))
    assert [devices_set_pace(of) for of in (run(timed), run(timed, None), run(timed, host(50.0)), run(), None)] == [
        True, False, False, False, False
    ]  # fmt: skip


NO_WORKERS = "no DataLoader worker process made a batch"


def test_missing_value_of_a_timed_rank_has_a_reason() -> None:
    (of,) = unprofiled_ranks(run(host(3, 5, lead=(1.0, 3.0), fetching=(2.0, 4.0)))) or ()
    assert (of.step_ms, of.host_ms, of.lead_ms, of.input_ms, of.steps, of.reasons) == (
        10,
        4,
        2,
        3,
        2,
        {"loader_ms": NO_WORKERS},
    )
    (of,) = unprofiled_ranks(run(host(3))) or ()
    assert (of.input_ms, of.lead_ms) == (None, None)
    assert set(of.reasons) == {"input_ms", "lead_ms", "loader_ms"}
    assert "does not report" in of.reasons["lead_ms"]
    (of,) = unprofiled_ranks(run(host(3), device="cpu")) or ()
    assert "on a CPU" in of.reasons["lead_ms"]
    assert [of.rank for of in unprofiled_ranks(run(None, host(), host(3))) or ()] == [2]
    assert unprofiled_ranks(run(None)) is unprofiled_ranks(None) is None


def test_recording_cost_uses_inner_steps_of_the_slowest_rank() -> None:
    cost = recording_cost(run(None, None, light=[times(90.0, 20.0, 30.0, 90.0), times(90.0, 27.0, 90.0)]))
    assert cost is not None
    assert (cost.unprofiled_ms, cost.light_ms, cost.full_ms) == (11, 27, None)
    cost = recording_cost(run(None, None, light=[times(20.0, 40.0), None]))
    assert cost is not None
    assert cost.light_ms == 30  # of two steps, no step is omitted
    assert recording_cost(run(None)) is recording_cost(None) is None


def test_missing_kernel_only_trace_is_reported_once() -> None:
    assert [(doubt.code, doubt.message) for doubt in recording_doubts(run(None, None, None, notes="why"))] == [
        ("no-light-recording", "why")
    ]
    assert recording_doubts(run(None)) == recording_doubts(None) == ()
