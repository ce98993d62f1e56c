"""Test that damaged recordings are reported and give no certain cause, and that intact recordings give no warning."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from msgspec.structs import replace

from gpudiag.analysis.timeline import build_timeline
from gpudiag.app.analyze import analyze, analyze_with_step
from gpudiag.model.analysis import UNTRUSTED_CODES
from gpudiag.model.event import EventKind, Role
from gpudiag.model.protobuf import message_type
from tests.analysis.diagnosis import broken
from tests.analysis.diagnosis.rule_examples.jobs import DDP, Job
from tests.analysis.timeline import broken_recordings as recordings

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpudiag.model.analysis import Analysis
    from gpudiag.model.event import Trace
    from gpudiag.model.timeline import Timeline

TRACES = Path(__file__).parents[2] / "traces"
MIRRORED = TRACES / "tensorflow" / "mirrored_nccl.xplane.pb.gz"
EVERY = range(4)
#: Recordings without defects.
SOUND = (
    *(TRACES / name for name in ("clean", "slow_loader_rank2", "vgg_p2poff", "tiny", "resnet50_dataloader")),
    TRACES / "gloo_dataloader",
    TRACES / "tensorflow",
    *sorted((TRACES / "public").iterdir()),
)
Break = tuple[str, "Callable[[Callable[[str], Path], Path], Path]"]

#: Defect → (code of its warning, function that makes the broken recording in a directory from full recordings).
BREAKS: dict[str, Break] = {
    "a rank of another run": (
        "mixed-runs",
        lambda of, to: recordings.with_ranks_of(of("slow_loader_rank2"), of("clean"), [2], to),
    ),
    "the late rank among those of a clean run": (
        "mixed-runs",
        lambda of, to: recordings.with_ranks_of(of("clean"), of("slow_loader_rank2"), [2], to),
    ),
    "ranks of another model": (
        "mixed-runs",
        lambda of, to: recordings.with_ranks_of(of("clean"), of("vgg_p2poff"), [2, 3], to),
    ),
    "one rank of another model": (
        "mixed-runs",
        lambda of, to: recordings.with_ranks_of(of("vgg_p2poff"), of("tiny"), [1], to),
    ),
    "one rank under two names": (
        "duplicate-ranks",
        lambda of, to: recordings.with_rank_twice(of("clean"), 0, 1, to, says=1),
    ),
    "two files of one rank": (
        "duplicate-ranks",
        lambda of, to: recordings.with_rank_twice(of("slow_loader_rank2"), 0, 1, to, says=0),
    ),
    "no device work on any rank": (
        "missing-device-activity",
        lambda of, to: recordings.without_device_work(of("slow_loader_rank2"), to, EVERY),
    ),
    "nothing of CUDA on any rank": (
        "missing-device-activity",
        lambda of, to: recordings.without_device_work(of("clean"), to, EVERY, calls=False),
    ),
    "copies, but no kernels": (
        "missing-device-activity",
        lambda of, to: recordings.with_events(of("tiny"), to, lambda category, _: category != "kernel", EVERY),
    ),
    "no device work on one rank": (
        "missing-device-activity",
        lambda of, to: recordings.without_device_work(of("slow_loader_rank2"), to, [1]),
    ),
    "nothing of CUDA on one rank": (
        "missing-device-activity",
        lambda of, to: recordings.without_device_work(of("vgg_p2poff"), to, [2], calls=False),
    ),
    "40 % lost of one job": (
        "lost-kernels",
        lambda of, to: recordings.with_lost_work(of("slow_loader_rank2"), to, 0.4),
    ),
    "40 % lost of another": ("lost-kernels", lambda of, to: recordings.with_lost_work(of("tiny"), to, 0.4)),
    "5 % lost": ("lost-kernels", lambda of, to: recordings.with_lost_work(of("vgg_p2poff"), to, 0.05)),
}


def untrusted(analysis: Analysis | Timeline) -> set[str]:
    return {validity.code for validity in analysis.validity} & UNTRUSTED_CODES


@pytest.mark.parametrize("name", BREAKS)
def test_broken_recordings_are_named_without_high_confidence(
    name: str, whole_recording: Callable[[str], Path], tmp_path: Path
) -> None:
    code, make = BREAKS[name]
    analysis, _ = analyze_with_step([make(whole_recording, tmp_path)])
    assert untrusted(analysis) == {code}
    assert {finding.confidence for finding in analysis.findings} <= {"low"}
    assert "compute-bound" not in {finding.code for finding in analysis.findings}
    assert not analysis.waits
    assert not any(device.device == "cpu" for device in analysis.devices)
    if code in {"mixed-runs", "missing-device-activity"}:
        assert not {"straggler", "communication-bound"} & {finding.code for finding in analysis.findings}


@pytest.mark.parametrize(
    ("code", "lost", "share"),
    [
        ("missing-device-activity", ("GPU:0", "GPU:1", "GPU:2", "GPU:3"), 1.0),
        ("missing-device-activity", ("GPU:2",), 1.0),
        ("lost-kernels", ("GPU:0", "GPU:1", "GPU:2", "GPU:3"), 0.4),
    ],
)
def test_broken_tensorflow_recordings_are_named(code: str, lost: tuple[str, ...], share: float, tmp_path: Path) -> None:
    space = message_type("xplane", "XSpace")()
    space.ParseFromString(gzip.decompress(MIRRORED.read_bytes()))
    recordings.say_devices_of_calls(space)
    draw = np.random.default_rng(0)
    for line in (line for plane in space.planes if plane.name.endswith(lost) for line in plane.lines):
        kept = [event for event in line.events if draw.random() >= share]
        del line.events[:]
        line.events.extend(kept)
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(space.SerializeToString())
    analysis = analyze([path])
    assert untrusted(analysis) == {code}
    assert {finding.confidence for finding in analysis.findings} <= {"low"}
    assert not analysis.waits
    assert not any(device.device == "cpu" for device in analysis.devices)


def test_without_device_work_only_host_steps_are_reported(
    whole_recording: Callable[[str], Path], analysis_of: Callable[[Path], Analysis], tmp_path: Path
) -> None:
    whole = analysis_of(TRACES / "whole" / "clean.npz")
    host = analyze([recordings.without_device_work(whole_recording("clean"), tmp_path, EVERY)])
    assert (host.devices, host.findings, host.kernels, host.collectives) == ((), (), (), ())
    assert host.steps.mean_ms == pytest.approx(whole.steps.mean_ms, rel=0.02)


def test_waits_for_a_missing_rank_are_not_attributed_to_another_rank(
    whole_recording: Callable[[str], Path], analysis_of: Callable[[Path], Analysis], tmp_path: Path
) -> None:
    whole = analysis_of(TRACES / "whole" / "slow_loader_rank2.npz")
    assert {wait.on_rank for wait in whole.waits if wait.ms_per_step > 1} == {2}
    partly = analyze([recordings.without_rank(whole_recording("slow_loader_rank2"), 2, tmp_path)])
    assert "missing-ranks" in {validity.code for validity in partly.validity}
    assert not partly.waits


@pytest.mark.long
@pytest.mark.parametrize("path", SOUND, ids=lambda path: path.name)
def test_intact_recordings_give_no_warning(path: Path, analysis_of: Callable[[Path], Analysis]) -> None:
    assert not untrusted(analysis_of(path))


@pytest.mark.long
@pytest.mark.parametrize("path", sorted((TRACES / "whole").rglob("*.npz")), ids=lambda path: path.stem)
def test_full_recordings_give_no_warning(path: Path, analysis_of: Callable[[Path], Analysis]) -> None:
    assert not untrusted(analysis_of(path))


def test_pause_on_one_rank_is_not_a_second_run() -> None:
    for step in (1, 4):
        traces = list(Job(ranks=3, step=DDP, steps=8).traces())
        traces[1] = broken.stretched(traces[1], step, 30_000_000)
        assert "mixed-runs" not in untrusted(build_timeline(traces))


def test_clocks_an_hour_apart_are_not_a_second_run() -> None:
    traces = [
        broken.clock_ahead(trace, 3_600_000_000_000 * (trace.rank or 0))
        for trace in Job(ranks=3, step=DDP, steps=8).traces()
    ]
    assert not untrusted(build_timeline(traces))


def test_graph_launch_loses_no_kernels() -> None:
    """With a CUDA graph all kernels of a step share one launch, and the replaced calls are missing."""
    (trace,) = Job(ranks=1, step=DDP, steps=8).traces()
    events = trace.events
    launches = np.flatnonzero((events.kind == EventKind.RUNTIME) & (events.role == Role.LAUNCH))
    first = launches[::10]  # each becomes the launch of a graph that replaces ten launches
    correlation = events.correlation.copy()
    for launch, following in zip(first, [*launches[10::10], None], strict=False):
        stop = None if following is None else events.start_ns[following]
        shared = launches[(events.start_ns[launches] >= events.start_ns[launch])]
        shared = shared if stop is None else shared[events.start_ns[shared] < stop]
        correlation[np.isin(events.correlation, events.correlation[shared])] = events.correlation[launch]
    stays = np.ones(len(events), np.bool_)
    stays[np.setdiff1d(launches, first)] = False
    graph = broken.kept(broken.changed(trace, correlation=correlation), stays)
    assert not untrusted(build_timeline([graph]))


def test_recording_with_only_marks_is_thin() -> None:
    (trace,) = Job(ranks=1, step=DDP, steps=8).traces()
    events = trace.events
    kernels = events.rows_of(EventKind.KERNEL)
    stays = events.role == Role.STEP_MARK
    stays[kernels[:: max(len(kernels) // 16, 1)]] = True
    assert "thin-recording" in untrusted(build_timeline([broken.kept(trace, stays)]))


def test_traces_of_jobs_of_different_size_are_mixed() -> None:
    traces: list[Trace] = list(Job(ranks=2, step=DDP, steps=8).traces())
    traces[1] = replace(traces[1], world_size=8)
    assert "mixed-runs" in untrusted(build_timeline(traces))
