"""Test laws for every job: buckets sum to the step, simulation reproduces it, and scenarios only save time."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpudiag.analysis.diagnosis.calibration import AS_RECORDED
from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.analysis.diagnosis.simulation.counterfactuals import (
    equalize_ranks,
    with_host_copies,
    without_communication,
    without_input,
    without_launch_cost,
    without_syncs,
    without_transfer,
)
from gpudiag.model.timeline import OpClass
from tests.analysis.diagnosis.cases import case_of
from tests.analysis.diagnosis.rule_examples.jobs import (
    Job,
    Piece,
    all_reduce,
    fetch,
    host_copy,
    item,
    kernels,
    python,
    silence,
    update,
)
from tests.examples import examples

if TYPE_CHECKING:
    from gpudiag.analysis.diagnosis.case import Case
    from gpudiag.analysis.diagnosis.simulation.graph import Scenario

#: The relative error that the search for the steady state may leave.
SETTLED = 2e-3

milliseconds = st.sampled_from([0.0, 0.2, 1.0, 3.0, 8.0])
host_pieces = st.one_of(
    milliseconds.map(fetch),
    milliseconds.map(silence),
    milliseconds.map(python),
    st.just(item()),
    milliseconds.map(lambda ms: host_copy(ms, megabytes=10, pinned=False)),
    milliseconds.map(lambda ms: host_copy(ms, megabytes=10)),
    st.tuples(milliseconds, st.integers(1, 12)).map(lambda pair: kernels(pair[0], count=pair[1])),
)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Draw a job of up to three ranks, with up to two collectives per step and more host work on some ranks."""
    step: list[Piece] = []
    for _ in range(draw(st.integers(0, 2))):
        step += draw(st.lists(host_pieces, max_size=3))
        step += [kernels(draw(milliseconds), count=draw(st.integers(1, 8))), all_reduce(draw(milliseconds))]
    step += [*draw(st.lists(host_pieces, max_size=3)), update(1)]
    ranks = draw(st.integers(1, 3))
    extra = draw(st.dictionaries(st.integers(0, ranks - 1), st.lists(host_pieces, max_size=2).map(tuple), max_size=2))
    return Job(ranks=ranks, step=tuple(step), extra=extra, steps=draw(st.integers(6, 9)))


def edits_of(case: Case, costs: Scenario) -> dict[str, Scenario]:
    """Return name → scenario, each applied to `costs`."""
    what_if = case.what_if
    assert what_if is not None
    return {
        "input": without_input(what_if, costs),
        "launch": without_launch_cost(what_if, costs),
        "syncs": without_syncs(what_if, costs),
        "transfer": without_transfer(what_if, costs),
        "communication": without_communication(what_if, costs),
        "copies": with_host_copies(what_if, costs, 0.0),
        "level": equalize_ranks(what_if, costs),
        "level each step": equalize_ranks(what_if, costs, each_step=True),
    }


@given(job=jobs(), scatter=st.sampled_from((0.0, 0.1)), recording_ns=st.sampled_from((0, 701)))
@examples(40)
def test_simulation_of_step_times_alone_equals_simulation_of_events(
    job: Job, scatter: float, recording_ns: int
) -> None:
    job = msgspec.structs.replace(job, scatter=scatter, recording_ns=recording_ns, host_pace={0: 1.3})
    seen, unseen = (job._play(recorded=recorded) for recorded in (True, False))
    assert [rank.finished for rank in unseen] == [rank.finished for rank in seen]


@given(job=jobs())
@examples(40)
def test_buckets_sum_exactly_to_the_step(job: Job) -> None:
    case = case_of(job.traces())
    for track in case.attribution.tracks:
        assert (track.buckets_ns.sum(axis=1) == track.step_ns).all()


@given(job=jobs())
@examples(40)
def test_unchanged_simulation_reproduces_the_measured_step(job: Job) -> None:
    case = case_of(job.traces())
    what_if = case.what_if
    assert what_if is not None
    steps = np.concatenate([track.step_ns for track in case.attribution.tracks])
    # Skip jobs without a steady state: hosts may run further ahead in each step, or a device may catch up.
    assume(steps.max() - steps.min() <= 0.01 * steps.mean())
    assert what_if.simulated_ms == pytest.approx(case.slowest_ms, rel=0.01)


@given(job=jobs(), order=st.permutations(range(8)))
@examples(40)
def test_removing_work_never_lengthens_the_step(job: Job, order: list[int]) -> None:
    case = case_of(job.traces())
    what_if = case.what_if
    assert what_if is not None
    costs, before = what_if.corrected, what_if.corrected_ms
    assert before <= what_if.simulated_ms * (1 + SETTLED)
    for index in order:
        name = list(edits_of(case, costs))[index]
        once = edits_of(case, costs)[name]
        now = what_if.step_ms(once)
        assert now <= before * (1 + SETTLED) + 1e-4, name
        assert (once.busy >= 0).all()
        assert (once.waiting >= -1e-6).all()
        assert (once.duration[np.isnan(once.transfer)] >= -1e-6).all()
        if "level" not in name:
            assert what_if.step_ms(edits_of(case, once)[name]) == pytest.approx(now, rel=SETTLED, abs=1e-4), name
        costs, before = once, now


@given(job=jobs())
@examples(30)
def test_graph_is_well_formed(job: Job) -> None:
    case = case_of(job.traces())
    assert case.what_if is not None
    host, device = case.what_if.graph.host, case.what_if.graph.device
    for column in (host.busy, host.input, host.before_first_op, host.block_delay, host.profiler):
        assert (column >= 0).all()
    assert (device.gap >= 0).all(), "nothing overlaps in a stream here"
    assert (device.transfer[~np.isnan(device.transfer)] >= 0).all()
    for first, after in case.what_if.graph.chains:
        assert (np.diff(host.time[first:after]) >= 0).all()
    for first, after in case.what_if.graph.streams:
        assert (np.diff(device.start[first:after]) >= 0).all()
        launched = device.launch[first:after]
        assert (np.diff(launched[launched >= 0]) >= 0).all(), "a stream runs in the order of launches"
    for op, peers in device.peers.items():
        assert op in peers
        assert (device.op_class[peers] == OpClass.COMMUNICATION).all()


@given(job=jobs())
@examples(30)
def test_findings_save_at_most_the_step_and_are_sorted(job: Job) -> None:
    case = case_of(job.traces())
    findings = diagnose(case).findings
    # Savings of a compiler are `info` at any size, and follow `compute-bound`.
    said = [
        (finding.code, finding.recoverable_ms_per_step or 0.0)
        for finding in findings
        if finding.code not in {"slow-compute", "compute-bound"}
    ]
    # Waste precedes work of equal cost, and precedes launch overhead.
    late = [(a, b) for (a, less), (b, more) in pairwise(said) if more > less and less < (1 - AS_RECORDED) * more]
    assert all(b == "launch-bound" for _, b in late), said
    assert all(0 <= (finding.recoverable_percent or 0.0) <= 100 for finding in findings)
