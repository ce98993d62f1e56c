"""Test that a digest contains the whole content of a trace, for every recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from gpudiag.model.event import Trace
from gpudiag.model.large_jobs.packed_events import plain, with_packed_events
from gpudiag.trace import ReadLimits, read_traces
from gpudiag.trace.readers.digest.decode import decode
from gpudiag.trace.readers.digest.encode import encode
from tests.traces.pack import unpack

TRACES = Path(__file__).parents[3] / "traces"
FILES = sorted(path for ending in ("json.gz", "pb.gz") for path in TRACES.rglob(f"*.{ending}"))
PACKED = sorted((TRACES / "whole").rglob("*.npz"))


def assert_equal(first: Any, second: Any, name: str = "trace") -> None:
    """Check two values of a trace for equal types, column types and values."""
    assert type(first) is type(second), name
    if isinstance(first, np.ndarray):
        assert first.dtype == second.dtype, name
        assert np.array_equal(first, second), name
    elif isinstance(first, msgspec.Struct):
        for field in first.__struct_fields__:
            assert_equal(getattr(first, field), getattr(second, field), f"{name}.{field}")
    elif isinstance(first, tuple) and first and isinstance(first[0], msgspec.Struct):
        assert len(first) == len(second), name
        for before, after in zip(first, second, strict=True):
            assert_equal(before, after, name)
    else:
        assert first == second, name


def assert_digest_holds(trace: Trace) -> None:
    digest = encode(trace)
    read = decode(digest, "rank0.gpudiag-digest", ReadLimits())
    assert read.source == "rank0.gpudiag-digest"
    whole = msgspec.structs.replace(read, source=trace.source, copies=trace.copies, events=plain(read.events))
    assert_equal(whole, trace)
    assert encode(with_packed_events(trace)) == digest


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TRACES)))
def test_digest_equals_trace(path: Path) -> None:
    for trace in read_traces([path], repeated=True):
        assert_digest_holds(trace)


@pytest.mark.long
@pytest.mark.parametrize("path", PACKED, ids=lambda path: str(path.relative_to(TRACES)))
def test_digest_equals_whole_recording(path: Path, tmp_path: Path) -> None:
    unpack(path, tmp_path)
    for trace in read_traces([tmp_path], repeated=True):
        assert_digest_holds(trace)
