"""Test the breakdown of a step from recorded steps of real jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.analysis.diagnosis.simulation.what_if import build_what_if
from gpudiag.analysis.scaling.parts import scale_to_timed, step_parts
from gpudiag.analysis.timeline import build_timeline
from gpudiag.model.benchmarks.scaling import STEP_PARTS, StepParts
from gpudiag.trace import read_traces

TRACES = Path(__file__).parents[2] / "traces"


def of(name: str, share: float = 1.0, *, fed: bool = True) -> StepParts:
    """Return the parts of a job (`fed`: it loads batches) whose unprofiled steps are `share` of its simulated steps."""
    timeline = build_timeline(read_traces([TRACES / name]), None)
    what_if = build_what_if(timeline)
    assert what_if is not None
    parts = step_parts(timeline, share * what_if.corrected_ms, fed=fed)
    assert parts is not None
    return parts


@pytest.mark.parametrize("name", ["clean", "slow_loader_rank2", "vgg_p2poff", "gloo_dataloader"])
def test_parts_sum_to_the_unprofiled_step(name: str) -> None:
    parts = of(name)
    assert set(parts.parts_ms) == set(STEP_PARTS)
    assert min(parts.parts_ms.values()) >= 0
    assert sum(parts.parts_ms.values()) == pytest.approx(parts.timed_ms, rel=0.03)
    assert parts.replayed_ms <= parts.recorded_ms * 1.01


def test_straggler_causes_waiting() -> None:
    late, clean = of("slow_loader_rank2"), of("clean")
    assert late.parts_ms["waiting"] > 0.2 * late.replayed_ms
    assert clean.parts_ms["waiting"] < 0.1 * clean.replayed_ms


def test_exposed_transfer_includes_copies_through_host_memory() -> None:
    parts = of("vgg_p2poff")
    assert parts.parts_ms["exposed_transfer"] > 0.4 * parts.replayed_ms
    assert parts.parts_ms["exposed_transfer"] > 10 * parts.parts_ms["waiting"]


def test_loader_is_input_only_if_batches_are_loaded() -> None:
    fed, unfed = of("resnet50_dataloader"), of("resnet50_dataloader", fed=False)
    assert fed.parts_ms["input"] > 0
    assert unfed.parts_ms["input"] == 0
    assert sum(fed.parts_ms.values()) == pytest.approx(sum(unfed.parts_ms.values()))


def test_slower_recorded_steps_are_scaled_with_a_note() -> None:
    parts = of("gloo_dataloader", 0.6)
    assert parts.on_cpu
    assert parts.scaled_by == pytest.approx(parts.timed_ms / parts.replayed_ms)
    assert sum(parts.parts_ms.values()) == pytest.approx(parts.timed_ms)


milliseconds = st.floats(0, 100, allow_subnormal=False)


@given(st.tuples(*[milliseconds] * len(STEP_PARTS)), st.floats(1, 300), st.booleans())
def test_scaling_never_makes_parts_longer_than_the_unprofiled_step(
    lengths: tuple[float, ...], timed_ms: float, on_cpu: bool
) -> None:
    parts_ms = dict(zip(STEP_PARTS, lengths, strict=True))
    scaled = scale_to_timed(parts_ms, timed_ms, on_cpu=on_cpu)
    kernels = 0.0 if on_cpu else parts_ms["compute"] + parts_ms["disturbed"]
    whole = kernels + scaled * (sum(lengths) - kernels)
    assert scaled >= 0
    assert whole <= max(timed_ms * 1.03, kernels) + 1e-6
