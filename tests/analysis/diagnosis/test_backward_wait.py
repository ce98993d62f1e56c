"""Test the training thread's wait for autograd's thread, which does not count as untraced time."""

from __future__ import annotations

from pathlib import Path

from gpudiag.analysis.diagnosis.simulation.host_time import backward_passes
from gpudiag.analysis.timeline import build_timeline
from gpudiag.app.analyze import analyze
from gpudiag.units import NS_PER_MS
from tests.timeline_builder import TraceBuilder

TRACES = Path(__file__).parents[2] / "traces"
TRAINING, AUTOGRAD = 1, 2


def passes(trace: TraceBuilder) -> list[tuple[int, int]]:
    """Return (start, end) of each backward pass in ms."""
    (track,) = build_timeline([trace.build()]).tracks
    return [(a // NS_PER_MS, b // NS_PER_MS) for a, b in backward_passes(track, [TRAINING, AUTOGRAD]).pairs()]


def job(kernels_by_autograd: int) -> TraceBuilder:
    """Make three steps of 100 ms: forward until 10 ms, backward from 20 to 70 ms with long pauses, update at 90 ms."""
    trace = TraceBuilder(unit_ns=NS_PER_MS)
    for step in range(3):
        trace.step(100 * step).by(TRAINING).operator(0, 10).compute(1, 9, launch=(1, 2))
        trace.by(AUTOGRAD)
        for begin in (20, 45, 60):
            trace.operator(begin, begin + 10)
        for kernel in range(kernels_by_autograd):
            trace.compute(20 + 10 * kernel, 29 + 10 * kernel, launch=(21 + kernel, 22 + kernel))
        trace.by(TRAINING).operator(90, 99).compute(91, 98, launch=(91, 92))
    return trace


def test_backward_pass_lasts_from_the_first_call_of_autograds_thread_to_its_last() -> None:
    assert passes(job(2)) == [(20, 70), (120, 170), (220, 270)]


def test_a_thread_that_launches_no_compute_makes_no_backward_pass() -> None:
    assert passes(job(0)) == []


def test_a_published_recording_has_no_stall_in_its_backward_pass() -> None:
    analysis = analyze([TRACES / "public" / "sampled_rank-1.json.gz"])
    (stall,) = [finding for finding in analysis.findings if finding.code == "host-stall"]
    assert not [place for place in stall.evidence["places_ms_per_step"] if "before ## optimizer ##" in place]
