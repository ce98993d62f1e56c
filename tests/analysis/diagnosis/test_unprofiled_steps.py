"""Test values from unprofiled steps: means, the cost of recording, and input waits that only these steps show."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, islice
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpudiag.analysis.diagnosis.calibration import MOST
from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.analysis.diagnosis.unprofiled_steps import (
    alone_waited_for,
    exposed_input_ms,
    recording_cost,
    recording_doubts,
    unprofiled_ranks,
)
from gpudiag.model.run import LoaderPace, RankRecord, StepsFound, UnprofiledSteps
from gpudiag.training.session.clock import summarize
from tests.analysis.diagnosis.cases import case_of
from tests.analysis.diagnosis.records import run_of
from tests.analysis.diagnosis.rule_examples.jobs import DDP, Job, all_reduce, fetch, kernels, silence, update
from tests.timeline_builder import TraceBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudiag.analysis.diagnosis.case import Case
    from gpudiag.model.analysis import Finding

STEPS = 40


def timed(job: Job, share: float | Sequence[float], *, device: str = "cuda", lead: float = 0.0) -> Case:
    """Return the job with unprofiled steps in which each rank fetches longer, by `share` of a recorded step.

    `lead` is the host's lead as a share of a recorded step; the lead also lengthens each fetch.
    """
    case = case_of(job.traces())
    shares = [share] * job.ranks if isinstance(share, float) else list(share)
    base_ms = case.slowest_ms
    # A loader's time varies between steps.
    scatter = list(islice(cycle((0.8, 1.2, 0.9, 1.1)), STEPS))
    case = run_of(case, [base_ms * (1 + max(shares) * factor) for factor in scatter])
    assert case.run is not None
    ranks = [
        msgspec.structs.replace(
            rank,
            device=device if device == "cpu" else f"{device}:{rank.rank}",
            timed=UnprofiledSteps(
                input_ms=tuple(base_ms * (own * factor + lead) for factor in scatter),
                host_ms=(base_ms,) * STEPS,
                lead_ms=None if device == "cpu" else (base_ms * lead,) * STEPS,
            ),
        )
        for rank, own in zip(case.run.ranks, shares, strict=True)
    ]
    return replace(case, run=msgspec.structs.replace(case.run, ranks=tuple(ranks)))


def findings_of(case: Case) -> dict[str, Finding]:
    return {finding.code: finding for finding in diagnose(case).findings}


#: No recorded step waits for input.
QUIET = Job(ranks=2, step=DDP)


@pytest.mark.parametrize(("device", "lead"), [("cuda", 0.0), ("cuda", 0.3), ("cpu", 0.0)])
def test_slow_loader_hidden_by_recording_is_found(device: str, lead: float) -> None:
    case = timed(QUIET, 0.1, device=device, lead=lead)
    assert "input-bound" not in findings_of(replace(case, run=None))
    finding = findings_of(case)["input-bound"]
    assert finding.recoverable_ms_per_step == pytest.approx(0.1 * case.slowest_ms, rel=0.01)
    assert finding.recoverable_percent == pytest.approx(100 * 0.1 / 1.1, rel=0.05)
    assert (finding.severity, finding.confidence, finding.ranks) == ("warning", "high", (0, 1))
    assert finding.evidence["timed_steps"] in {STEPS, STEPS - 1}
    assert finding.advice
    assert "compute-bound" not in findings_of(case)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(timed(QUIET, 0.02), id="2 % of the step"),
        pytest.param(timed(QUIET, (0.3, 0.0)), id="one rank alone is a straggler"),
        pytest.param(timed(QUIET, 0.0, lead=0.5), id="all of it hidden by the lead"),
        pytest.param(timed(QUIET, 0.0, device="cpu"), id="no time in fetching"),
    ],
)
def test_wait_that_costs_nothing_is_no_finding(case: Case) -> None:
    assert "input-bound" not in findings_of(case)


def test_unknown_device_wait_gives_no_finding() -> None:
    case = timed(QUIET, 0.3)
    assert case.run is not None
    for unknown in ({"lead_ms": None}, {"input_ms": None}):
        ranks = tuple(
            msgspec.structs.replace(rank, timed=msgspec.structs.replace(rank.timed, **unknown))
            for rank in case.run.ranks
            if rank.timed is not None
        )
        assert "input-bound" not in findings_of(replace(case, run=msgspec.structs.replace(case.run, ranks=ranks)))


def test_recorded_wait_is_reported_from_the_recording() -> None:
    finding = findings_of(timed(Job(ranks=1, step=(fetch(30), kernels(20))), 0.1))["input-bound"]
    assert "timed_steps" not in finding.evidence


#: In recorded steps, rank 1 fetches for 30 ms longer.
ONE_LATER = Job(ranks=2, step=(fetch(30), *DDP), extra={1: (fetch(30),)})


def on_cpus(waits: tuple[float, float], batch_ms: tuple[float, float] | None = None) -> Case:
    """Return the job on CPUs with unprofiled steps of 60 ms, with fetch times by rank and times per batch by rank."""
    case = run_of(case_of(ONE_LATER.traces()), [60.0] * STEPS)
    assert case.run is not None
    ranks = []
    for rank, wait in zip(case.run.ranks, waits, strict=True):
        loader = None if batch_ms is None else LoaderPace(workers=1, batches=STEPS, batch_ms=batch_ms[rank.rank])
        steps = UnprofiledSteps(
            input_ms=(wait - 0.5, wait + 0.5) * (STEPS // 2), host_ms=(20.0,) * STEPS, loader=loader
        )
        ranks.append(msgspec.structs.replace(rank, device="cpu", timed=steps))
    return replace(case, run=msgspec.structs.replace(case.run, ranks=tuple(ranks)))


def test_loader_late_in_few_recorded_steps_is_no_straggler() -> None:
    recorded = findings_of(replace(on_cpus((30, 30)), run=None))
    assert recorded["straggler"].ranks == (1,)
    alike = findings_of(on_cpus((30, 30)))
    assert "straggler" not in alike
    assert alike["input-bound"].recoverable_ms_per_step == pytest.approx(38.2, rel=0.01)
    # Rank 1 also waited longer in unprofiled steps, but less than in recorded steps.
    later = findings_of(on_cpus((30, 40)))
    assert (later["straggler"].ranks, later["straggler"].cause) == ((1,), "input")
    assert later["straggler"].recoverable_ms_per_step == pytest.approx(10)
    assert next(iter(later)) == "input-bound"


def test_other_findings_are_relative_to_the_step_without_unrecorded_input() -> None:
    """The loader keeps up with recorded steps of 28 ms. Unprofiled steps work for 20 ms and wait 30 ms for the
    loader."""
    slow_host = Job(ranks=1, step=(fetch(0.1), kernels(15, count=2000, launch_us=14)))
    case = run_of(case_of(slow_host.traces()), [50.0] * STEPS)
    assert case.run is not None
    steps = UnprofiledSteps(input_ms=(29.5, 30.5) * (STEPS // 2), host_ms=(20.0,) * STEPS, lead_ms=(0.0,) * STEPS)
    ranks = tuple(msgspec.structs.replace(rank, device="cuda:0", timed=steps) for rank in case.run.ranks)
    case = replace(case, run=msgspec.structs.replace(case.run, ranks=ranks))
    assert case.what_if is not None
    assert case.what_if.input_not_recorded_ms == pytest.approx(30, rel=0.01)
    assert case.what_if.corrected_ms == pytest.approx(20, rel=0.02)
    findings = findings_of(case)
    assert findings["input-bound"].recoverable_ms_per_step == pytest.approx(30, rel=0.01)
    assert findings["launch-bound"].recoverable_ms_per_step == pytest.approx(20 - 15.3, abs=1)
    (said,) = (warning.message for warning in diagnose(case).validity if warning.code == "profiler-overhead")
    assert "29.9 ms of waiting for input that were not recorded; 50.0 ms were measured" in said


def test_equally_slow_workers_make_no_rank_late() -> None:
    slow = findings_of(on_cpus((1, 40), (59.0, 59.5)))
    assert slow["straggler"].recoverable_ms_per_step == pytest.approx(1)  # the workers of rank 0 also need 59 ms
    assert next(iter(slow)) == "input-bound"
    late = findings_of(on_cpus((1, 40), (10.0, 59.5)))
    assert (late["straggler"].ranks, late["straggler"].cause) == ((1,), "input")
    assert late["straggler"].recoverable_ms_per_step == pytest.approx(30)


def test_rank_with_slow_workers_is_named_even_without_a_wait() -> None:
    hidden = run_of(case_of(QUIET.traces()), [60.0] * STEPS)
    assert hidden.run is not None
    for batch_ms, ranks in ((59.0, (0, 1)), (40.0, (1,))):
        case = replace(hidden, run=on_cpus((8, 40), (batch_ms, 59.5)).run)
        assert findings_of(case)["input-bound"].ranks == ranks


def test_savings_of_input_exclude_overlapped_device_work() -> None:
    rank = RankRecord(rank=0, local_rank=0, host="", pid=1, device="cuda:0", device_name="")
    steps = UnprofiledSteps(input_ms=(9.0, 8.0, 2.0, 7.0), host_ms=(1.0,) * 4, lead_ms=(5.0, 5.0, 0.0, 9.0))
    # The first step has no previous lead. In the other steps the fetch takes 8, 2 and 7 ms. The previous step's lead of
    # 5, 5 and 0 ms hides time of the fetch.
    assert exposed_input_ms(msgspec.structs.replace(rank, timed=steps)) == (3.0, 0.0, 7.0)
    on_cpu = msgspec.structs.replace(steps, lead_ms=None)
    assert exposed_input_ms(msgspec.structs.replace(rank, timed=on_cpu, device="cpu")) == (9.0, 8.0, 2.0, 7.0)
    assert exposed_input_ms(rank) == ()


def test_means_and_recording_costs_of_a_run() -> None:
    case = timed(QUIET, 0.1, lead=0.2)
    assert case.run is not None
    ranks = [
        msgspec.structs.replace(
            rank,
            light=summarize([99.0, 12.0, 14.0, 99.0]),
            profiled=summarize([99.0, 20.0 + rank.rank, 99.0]),
            notes={"no-light-recording": "because"} if rank.rank else {},
        )
        for rank in case.run.ranks
    ]
    run = msgspec.structs.replace(case.run, ranks=tuple(ranks))
    cost = recording_cost(run)
    assert cost is not None
    # The means are those of the slowest rank without its first and last step, as in the analysis.
    assert (cost.light_ms, cost.full_ms) == (13.0, 21.0)
    assert cost.unprofiled_ms == case.unprofiled_ms
    first, second = unprofiled_ranks(run) or ()
    assert (first.rank, second.rank, first.steps) == (0, 1, STEPS)
    assert first.input_ms == pytest.approx(0.3 * case.slowest_ms)
    assert first.lead_ms == pytest.approx(0.2 * case.slowest_ms)
    assert [doubt.message for doubt in recording_doubts(run)] == ["because"]


def test_run_record_without_unprofiled_fields_gives_no_figures() -> None:
    case = run_of(case_of(QUIET.traces()), [10.0, 11.0, 10.0])
    assert unprofiled_ranks(case.run) is None
    assert recording_cost(case.run) is None
    assert recording_doubts(case.run) == ()
    assert (unprofiled_ranks(None), recording_cost(None), recording_doubts(None)) == (None, None, ())


#: Each device takes 26.4 ms, of which exposed communication takes 8 ms. In recorded steps the hosts take 28 ms.
HIDDEN_WHILE_RECORDED = Job(ranks=2, step=(kernels(15, count=2000, launch_us=14), all_reduce(8), update(1)))
DEVICE_MS, COMMUNICATION_MS = 26.4, 8.0
#: Host time per step. The unprofiled step takes this time if the profiler does not slow the host.
HOST_MS = 28.0


def exchange_ms(
    step_ms: float,
    host_ms: Sequence[float],
    *,
    job: Job = HIDDEN_WHILE_RECORDED,
    lead_ms: float | None = None,
    idle_host_ms: tuple[float, ...] = (),
) -> float:
    """Return the savings of communication in ms.

    An unprofiled step takes `step_ms`; hosts work for `host_ms` (repeated in this order) and run ahead by `lead_ms`.
    `idle_host_ms` are host times of preceding steps that began on an idle device.
    """
    case = run_of(case_of(job.traces()), [step_ms] * STEPS)
    assert case.run is not None
    timed_host = UnprofiledSteps(
        host_ms=tuple(islice(cycle(host_ms), STEPS)),
        lead_ms=None if lead_ms is None else (lead_ms,) * STEPS,
        idle_host_ms=idle_host_ms,
    )
    ranks = [msgspec.structs.replace(rank, timed=timed_host) for rank in case.run.ranks]
    case = replace(case, run=msgspec.structs.replace(case.run, ranks=tuple(ranks)))
    assert case.what_if is not None
    assert case.what_if.corrected_ms >= 0.99 * step_ms
    finding = findings_of(case).get("communication-bound")
    return 0.0 if finding is None else finding.recoverable_ms_per_step or 0.0


def test_communication_hidden_only_while_recorded_is_found_by_host_speed() -> None:
    """A host that runs far ahead waits for the full launch queue, so only some steps show its speed."""
    assert exchange_ms(DEVICE_MS, [DEVICE_MS, 16.0, DEVICE_MS, DEVICE_MS]) == pytest.approx(COMMUNICATION_MS, rel=0.02)
    assert exchange_ms(DEVICE_MS, [DEVICE_MS]) < COMMUNICATION_MS / 2


def test_communication_hidden_only_while_recorded_is_found_by_idle_starts() -> None:
    assert exchange_ms(DEVICE_MS, [DEVICE_MS], idle_host_ms=(25.0, 16.0)) == pytest.approx(COMMUNICATION_MS, rel=0.02)


#: A job like `HIDDEN_WHILE_RECORDED` with fast hosts, except that recording slows the host of rank 1 at the start of
#: its step.
_LAST = (all_reduce(8), update(1))
ONE_SLOWED = Job(
    ranks=2,
    step=(kernels(15, count=2000, launch_us=8), *_LAST),
    own={1: (kernels(1.5, count=200, launch_us=70), kernels(13.5, count=1800, launch_us=8), *_LAST)},
)


@pytest.mark.parametrize(("lead_ms", "each"), [(14.0, True), (13.0, False), (None, False)])
def test_simulated_hosts_are_not_slower_than_unprofiled_if_devices_limit_the_step(
    lead_ms: float | None, each: bool
) -> None:
    """A host that runs ahead by more than half of the step (13.2 of 26.4 ms) does not determine the step time."""
    timed = exchange_ms(DEVICE_MS, [DEVICE_MS], job=ONE_SLOWED, lead_ms=lead_ms, idle_host_ms=(18.0,))
    assert (timed > 0.9 * COMMUNICATION_MS) == each


def test_host_that_limits_the_step_is_not_made_faster() -> None:
    as_told = exchange_ms(HOST_MS, [HOST_MS])
    assert exchange_ms(HOST_MS, [HOST_MS, 16.0]) == pytest.approx(as_told)


def test_longer_unprofiled_steps_lower_confidence() -> None:
    case = case_of(Job(ranks=2, step=(kernels(10), all_reduce(10), update(1))).traces())
    as_recorded, longer = (
        findings_of(run_of(case, [case.slowest_ms * times] * STEPS))["communication-bound"] for times in (1.0, 1.3)
    )
    assert as_recorded.confidence == "high"
    assert longer.confidence == "medium", "0.3 of a step is unexplained, compared with savings of half a step"
    assert longer.recoverable_ms_per_step == pytest.approx(as_recorded.recoverable_ms_per_step, rel=0.01)


def fetching(job: Job, input_ms: Sequence[float]) -> Case:
    """Return the job on CPUs with unprofiled steps as long as recorded steps; `input_ms` is each rank's fetch time."""
    case = case_of(job.traces())
    case = run_of(case, [case.slowest_ms] * STEPS)
    assert case.run is not None
    ranks = [
        msgspec.structs.replace(
            rank,
            device="cpu",
            timed=UnprofiledSteps(input_ms=(fetched,) * STEPS, host_ms=(case.slowest_ms - fetched,) * STEPS),
        )
        for rank, fetched in zip(case.run.ranks, input_ms, strict=True)
    ]
    return replace(case, run=msgspec.structs.replace(case.run, ranks=tuple(ranks)))


#: After the step's first kernels there are 30 ms of untraced host time, which the trace alone reports as a stall.
ELSEWHERE = (kernels(1), silence(30))


def test_stall_that_unprofiled_steps_show_as_fetching_is_reported_once_as_input() -> None:
    job = Job(ranks=2, step=(*ELSEWHERE, *DDP))
    assert "host-stall" in findings_of(fetching(job, (0.0, 0.0)))
    case = fetching(job, (30.0, 30.0))
    findings = findings_of(case)
    assert "host-stall" not in findings
    assert findings["input-bound"].recoverable_ms_per_step == pytest.approx(30)
    assert "host-stall" not in {fix.code for fix in diagnose(case).next}


def test_stall_of_a_late_rank_that_is_fetching_is_input() -> None:
    job = Job(ranks=2, step=DDP, extra={1: ELSEWHERE})
    causes = [findings_of(fetching(job, (0.0, fetched)))["straggler"].cause for fetched in (0.0, 30.0)]
    assert causes == ["stall", "input"]


@pytest.mark.parametrize("found", [None, StepsFound(by="optimizer", optimizer="SGD", optimizers=1)])
@pytest.mark.parametrize("late", [(0,), (0, 1)])
def test_unmarked_time_after_an_update_may_be_more_than_input(late: tuple[int, ...], found: StepsFound | None) -> None:
    ranks = [TraceBuilder(rank, world_size=2) for rank in range(2)]
    for rank, trace in enumerate(ranks):
        for step in range(6):
            begin = 30_000 if rank in late else 100
            trace.step(step * 62_000).operator(begin, begin + 20_000, "aten::mm")
            trace.operator(begin + 20_010, begin + 20_300, "c10d::allreduce_")
            trace.gloo(begin + 20_200, 52_000, thread=91, ranks=(0, 1), size_bytes=4_000)
            trace.operator(52_020, 61_900, "aten::copy_")
    case = run_of(case_of([trace.build() for trace in ranks]), [62.0] * 6)
    assert case.run is not None
    case = replace(case, run=msgspec.structs.replace(case.run, steps_found=found))
    finding = diagnose(case).findings[0]
    assert finding.code == ("input-bound" if len(late) == 2 else "straggler")
    assert finding.ranks == late
    assert "unmarked time" in finding.title
    assert ("logging, saving" in finding.title) == (found is not None)
    assert ("work after it (logging" in finding.advice[0]) == (found is not None)
    assert finding.place.endswith("before aten::mm")


def hosts(case: Case, *leads: Sequence[float], host_ms: float = 50.0) -> Case:
    """Return the case with hosts that took `host_ms` for each unprofiled step and ran ahead by `leads` ms."""
    case = run_of(case, [host_ms] * len(leads[0]))
    assert case.run is not None
    ranks = [
        msgspec.structs.replace(
            rank, device=f"cuda:{rank.rank}", timed=UnprofiledSteps(host_ms=(host_ms,) * len(lead), lead_ms=tuple(lead))
        )
        for rank, lead in zip(case.run.ranks, leads, strict=True)
    ]
    return replace(case, run=msgspec.structs.replace(case.run, ranks=tuple(ranks)))


BY_TURNS = [[45.0, 0.5] * 10, [0.5, 45.0] * 10]


@pytest.mark.parametrize(
    ("leads", "late", "alone"),
    [
        ([[45.0] * 20, [0.5] * 20], (1,), True),
        ([[45.0] * 20, [0.5] * 20], (0,), False),
        ([[45.0] * 11 + [0.5] * 9, [0.5] * 20], (1,), True),
        ([[45.0] * 10 + [0.5] * 10, [0.5] * 20], (1,), False),
        (BY_TURNS, (1,), False),
        ([[45.0] * 20, [45.0] * 20], (1,), False),
        ([[45.0] * 20, [0.5] * 20, [45.0] * 20, [0.5] * 20], (1,), True),
        ([[45.0] * 20, [0.5] * 20, [0.5] * 20, [0.5] * 20], (1,), False),
    ],
)
def test_ranks_ahead_of_their_devices_wait_for_other_ranks(
    leads: list[list[float]], late: tuple[int, ...], alone: bool
) -> None:
    case = hosts(case_of(Job(ranks=len(leads), step=DDP).traces()), *leads)
    assert alone_waited_for(case.run, range(len(leads)), late) == alone


@pytest.mark.parametrize(("lead", "alone"), [(24.9, False), (25.1, True)])
def test_host_less_than_half_a_step_ahead_may_limit_the_step(lead: float, alone: bool) -> None:
    case = hosts(case_of(Job(ranks=2, step=DDP).traces()), [lead] * 20, [0.5] * 20)
    assert alone_waited_for(case.run, range(2), (1,))
    assert alone_waited_for(case.run, range(2), (1,), ahead_from=MOST) == alone


def test_no_rank_is_reported_as_awaited_if_a_rank_has_no_host_lead() -> None:
    case = hosts(case_of(Job(ranks=2, step=DDP).traces()), [45.0] * 20, [0.5] * 20)
    assert case.run is not None
    assert not alone_waited_for(case.run, range(3), (1,))
    assert not alone_waited_for(None, range(2), (1,))
    ranks = [
        msgspec.structs.replace(rank, timed=msgspec.structs.replace(rank.timed, lead_ms=None))
        for rank in case.run.ranks
        if rank.timed is not None
    ]
    assert not alone_waited_for(msgspec.structs.replace(case.run, ranks=tuple(ranks)), range(2), (1,))


def test_host_without_a_core_is_late_if_unprofiled_steps_confirm_it() -> None:
    """Both hosts took equally long for an unprofiled step, because one host waited for the full launch queue."""
    step = (kernels(10, count=200, launch_us=60), all_reduce(2), update(1))
    case = case_of(Job(ranks=2, step=step, host_pace={1: 1.8}, recording_ns=60_000, steps=8).traces())
    told, untold = (findings_of(hosts(case, *leads, host_ms=24.0)) for leads in ([[22.0] * 20, [0.5] * 20], BY_TURNS))
    assert (told["straggler"].ranks, told["straggler"].cause) == ((1,), "launch")
    assert "straggler" not in untold


def test_longer_unprofiled_steps_belong_to_the_awaited_rank() -> None:
    """Rank 1 pauses for 30 ms in recorded steps, and for 38 ms in unprofiled steps."""
    step = (kernels(10), all_reduce(2), kernels(10), all_reduce(1), update(1))
    pause = (kernels(5), silence(30), kernels(5), all_reduce(2), kernels(10), all_reduce(1), update(1))
    case = case_of(Job(ranks=2, step=step, own={1: pause}, steps=8).traces())
    timed_ms = case.slowest_ms + 8.0
    ahead, behind = [timed_ms - 2.0] * 20, [0.5] * 20
    asked, by_turns = (
        findings_of(hosts(case, *leads, host_ms=timed_ms))["straggler"]
        for leads in ((ahead, behind), (ahead[:10] + behind[:10], behind[:10] + ahead[:10]))
    )
    assert (asked.ranks, asked.cause, asked.place) == ((1,), by_turns.cause, by_turns.place)
    gain_ms = asked.recoverable_ms_per_step or 0.0
    assert gain_ms == pytest.approx((by_turns.recoverable_ms_per_step or 0.0) + 8.0, abs=0.1)
    assert asked.recoverable_percent == pytest.approx(100 * gain_ms / timed_ms, rel=0.01)
    assert asked.evidence["step_ms_now"] == pytest.approx(timed_ms, rel=0.01)
    assert asked.evidence["step_ms_if_fixed"] == pytest.approx(by_turns.evidence["step_ms_if_fixed"])
    assert (asked.confidence, by_turns.confidence) == ("high", "medium")
