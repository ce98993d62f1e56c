"""Test curves over a run's steps, in files that TensorBoard reads."""

from __future__ import annotations

import struct
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from gpudiag.app.analyze import analyze
from gpudiag.model.analysis import BUCKETS
from gpudiag.model.protobuf import message_type
from gpudiag.report.export.tensorboard.log_directory import crc32c, write_events
from tests.report.export.exported import exported_job
from tests.trace.documents import TRACES

if TYPE_CHECKING:
    from pathlib import Path


def test_crc32c_matches_the_standard() -> None:
    """The vectors are from RFC 3720, appendix B.4."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


def test_scalar_series_equal_the_analysis() -> None:
    analysis = analyze([TRACES / "slow_loader_rank2"])
    curves = {curve.tag: curve.points for curve in exported_job("slow_loader_rank2").series}
    assert {step for step, _ in curves["step/ms"]} == {step for step, _ in curves["efficiency/compute"]} == {4, 5}

    def mean(tag: str) -> float:
        return sum(value for _, value in curves[tag]) / len(curves[tag])

    assert mean("step/ms") == pytest.approx(analysis.steps.mean_ms)
    for bucket in BUCKETS:
        expected = sum(device.buckets_ms[bucket] for device in analysis.devices) / 4
        assert mean(f"buckets_ms/{bucket}") == pytest.approx(expected)
    assert 0.3 < mean("efficiency/compute") < 0.6


def test_event_file_is_tfrecords(tmp_path: Path) -> None:
    series = exported_job("slow_loader_rank2").series
    path = tmp_path / "events.out.tfevents.gpudiag"
    write_events(series, "# What ran", path, 1.7e9)
    data, events = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        events.append(message_type("summary", "Event").FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    assert events[0].file_version == "brain.Event:2"
    (text,) = events[1].summary.value
    assert text.tag == "gpudiag/verdict"
    assert text.metadata.plugin_data.plugin_name == "text"
    assert list(text.tensor.string_val) == [b"# What ran"]
    # A field that is 0 must be in the file, because TensorBoard ignores absent values.
    assert {value.WhichOneof("value") for event in events[2:] for value in event.summary.value} == {"simple_value"}
    assert 0.0 in {value.simple_value for event in events[2:] for value in event.summary.value}
    scalars = {(value.tag, event.step): value.simple_value for event in events[2:] for value in event.summary.value}
    expected = {(curve.tag, step): value for curve in series for step, value in curve.points}
    assert scalars == pytest.approx(expected)


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="TensorBoard is not installed here")
def test_tensorboard_reads_the_event_file(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write_events(
        exported_job("slow_loader_rank2").series, "# What ran", tmp_path / "events.out.tfevents.gpudiag", 1.7e9
    )
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    assert "step/ms" in accumulator.Tags()["scalars"]
    assert accumulator.Tags()["tensors"] == ["gpudiag/verdict"]
