"""Test known facts about the recordings in `tests/traces/`, both small traces and full recordings."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from msgspec.structs import replace

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.timeline import build_timeline
from gpudiag.model.analysis import BUCKETS
from gpudiag.model.event import Role
from gpudiag.trace import read_traces
from gpudiag.units import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpudiag.model.timeline import Attribution, Timeline

HERE = Path(__file__).parents[2] / "traces"
WHOLE = sorted(path.stem for path in (HERE / "whole").glob("*.npz"))

#: Unprofiled step times in ms of four-GPU jobs that are limited by the device.
UNPROFILED_MS = {"clean": 30.81, "vgg_p2poff": 39.07}


def jobs(root: Path) -> list[Path]:
    """Return the paths of jobs: directories, and each trace in `public*`.

    Traces without work of a known device are left out.
    """
    directories = {path.parent for path in root.rglob("*.json.gz") if "input_only" not in path.parts}
    alone = sorted(path for path in root.rglob("public*/*.json.gz") if not path.name.startswith("mtia"))
    return sorted(directory for directory in directories if not directory.name.startswith("public")) + alone


@pytest.fixture(
    params=[
        *[pytest.param(path, id=f"small-{path.name}") for path in jobs(HERE)],
        *[pytest.param(name, id=f"whole-{name}") for name in WHOLE],
    ]
)
def job(request: pytest.FixtureRequest, whole_recording: Callable[[str], Path]) -> Path:
    """Return the traces of one job."""
    return request.param if isinstance(request.param, Path) else whole_recording(request.param)


@cache
def analysed(path: Path) -> tuple[Timeline, Attribution]:
    timeline = build_timeline(read_traces(sorted(path.glob("*.json.gz")) if path.is_dir() else [path]))
    return timeline, attribute(timeline)


def mean_ms(attribution: Attribution, bucket: str) -> list[float]:
    return [float(track.buckets_ns[:, BUCKETS.index(bucket)].mean()) / NS_PER_MS for track in attribution.tracks]


def test_every_nanosecond_is_in_one_bucket(job: Path) -> None:
    _, attribution = analysed(job)
    for track in attribution.tracks:
        assert track.buckets_ns.sum(axis=1).tolist() == track.step_ns.tolist()
        waited = sum(int(share.sum()) for share in track.waits_ns.values())
        assert waited == track.buckets_ns[:, BUCKETS.index("communication_wait")].sum()


def test_real_traces_have_compute(job: Path) -> None:
    timeline, attribution = analysed(job)
    assert timeline.tracks
    assert all(len(track.step_ns) >= 1 and track.step_ns.sum() > 0 for track in attribution.tracks)


@pytest.mark.parametrize("name", sorted(UNPROFILED_MS))
def test_device_step_equals_the_unprofiled_step(name: str) -> None:
    _, attribution = analysed(HERE / name)
    steps = [float(track.step_ns.mean()) / NS_PER_MS for track in attribution.tracks]
    assert steps == pytest.approx([UNPROFILED_MS[name]] * len(steps), rel=0.03)


@pytest.mark.parametrize("name", ["clean", "slow_loader_rank2", "tiny", "vgg_p2poff", "resnet50_dataloader"])
def test_all_ranks_have_the_same_step_time(name: str) -> None:
    _, attribution = analysed(HERE / name)
    steps = [float(track.step_ns.mean()) for track in attribution.tracks]
    assert max(steps) <= 1.01 * min(steps)


def test_straggler_with_late_loader_is_waited_for() -> None:
    """Rank 2's loader is 40 ms late, so the other ranks spend much more time waiting than transferring."""
    _, attribution = analysed(HERE / "slow_loader_rank2")
    waits, transfers = mean_ms(attribution, "communication_wait"), mean_ms(attribution, "communication_transfer")
    for track, wait, transfer in zip(attribution.tracks, waits, transfers, strict=True):
        if track.rank == 2:
            assert wait < 0.1
            assert track.unmarked_input.end.sum() - track.unmarked_input.start.sum() > 20 * NS_PER_MS * len(
                track.step_ns
            )
        else:
            assert wait > 25
            assert transfer < 1
            named = {rank: int(share.sum()) for rank, share in track.waits_ns.items()}
            assert max(named, key=named.__getitem__) == 2
            assert named[2] > 0.99 * sum(named.values())


def test_slow_transport_is_transfer_instead_of_wait() -> None:
    """An ablation shows that 19.9 of 39.4 ms are communication, equally on all ranks."""
    _, attribution = analysed(HERE / "vgg_p2poff")
    assert mean_ms(attribution, "communication_transfer") == pytest.approx([18.5] * len(attribution.tracks), rel=0.1)
    assert max(mean_ms(attribution, "communication_wait")) < 0.5


def test_small_layers_are_bound_by_launches() -> None:
    """The other ranks wait for rank 2, which spends most of its step launching."""
    _, attribution = analysed(HERE / "tiny")
    (slowest,) = (track for track in attribution.tracks if track.rank == 2)
    assert slowest.buckets_ns[:, BUCKETS.index("launch")].sum() > 0.7 * slowest.step_ns.sum()


@pytest.mark.parametrize("name", ["clean", "vgg_p2poff", "slow_loader_rank2"])
def test_all_collectives_within_the_windows_match(name: str) -> None:
    _, attribution = analysed(HERE / name)
    assert [track.unsplit_ns.sum() for track in attribution.tracks] == [0] * len(attribution.tracks)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("clean", "optimizer"),
        ("clean", "range"),
        ("clean", "pattern"),
        ("vgg_p2poff", "optimizer"),
        ("vgg_p2poff", "pattern"),  # autograd's thread makes most launches; a step has six ranges of collectives
    ],
)
def test_steps_without_marks_have_the_same_length(name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps taken from optimizer ends, from ranges or from the pattern of launches have the same period."""
    if (name, source) == ("clean", "pattern"):
        monkeypatch.setattr("gpudiag.analysis.timeline.steps._enclosing", lambda *_: None)
    hidden = {Role.STEP_MARK} if source == "optimizer" else {Role.STEP_MARK, Role.OPTIMIZER}
    (trace,) = read_traces(sorted((HERE / name).glob("*.json.gz"))[:1])
    role = np.where(np.isin(trace.events.role, list(hidden)), np.uint8(Role.OTHER), trace.events.role)
    (track,) = build_timeline([replace(trace, events=replace(trace.events, role=role), step_marks=())]).tracks
    assert track.steps.source == source
    assert np.diff(track.bounds).mean() / NS_PER_MS == pytest.approx(UNPROFILED_MS[name], rel=0.03)


def test_gloo_job_has_compute_transfer_and_input() -> None:
    """Two CPU ranks have compute, transfer and input.

    Collectives of the ranks match, although their ends differ by milliseconds.
    """
    timeline, attribution = analysed(HERE / "gloo_dataloader")
    assert [track.label for track in timeline.tracks] == ["cpu", "cpu"]
    for bucket in ("compute", "communication_transfer", "input"):
        assert min(mean_ms(attribution, bucket)) > 0.5
    assert [int((track.collectives.instance == -1).sum()) for track in timeline.tracks] == [0, 0]
    assert {clock.offset_ns for clock in timeline.clocks} == {0}


@pytest.mark.parametrize("offset_ms", [4, -2_500])
def test_clock_offset_changes_nothing(offset_ms: int) -> None:
    """Move rank 1's clock: its collectives align the clock again, so that all results are the same."""
    traces = read_traces(sorted((HERE / "clean").glob("*.json.gz")))
    shifted = [
        replace(trace, origin_ns=trace.origin_ns + offset_ms * NS_PER_MS) if trace.rank == 1 else trace
        for trace in traces
    ]
    timeline = build_timeline(shifted)
    (clock,) = (clock for clock in timeline.clocks if clock.rank == 1)
    assert clock.offset_ns / NS_PER_MS == pytest.approx(-offset_ms, abs=0.03)
    _, right = analysed(HERE / "clean")
    for found, expected in zip(attribute(timeline).tracks, right.tracks, strict=True):
        assert np.abs(found.buckets_ns - expected.buckets_ns).max() < 0.05 * NS_PER_MS
