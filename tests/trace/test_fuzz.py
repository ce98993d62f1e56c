"""Test reading of arbitrary bytes: the result is a trace with valid columns, or one of gpudiag's errors. There is never
a traceback."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.errors import GpudiagError
from gpudiag.model.event import HOST, NO_CORRELATION, NO_SIZE, EventKind, Trace
from gpudiag.trace import is_communication_kernel, read_traces
from tests.examples import examples
from tests.trace.documents import document, event, kernel, launch

_NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_SEED = document(
    event("user_annotation", "ProfilerStep#1", 0, 1000),
    event("cpu_op", "record_param_comms", 3, 20, args={"Collective name": "allreduce", "dtype": "Float"}),
    launch(5, 1),
    kernel(_NCCL, 30, 9, 1, **{"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float", "Seq": 1}),
    event("gpu_memcpy", "Memcpy HtoD", 40, 3, pid=0, tid="stream 7", args={"bytes": 4096, "correlation": 2}),
    event("Trace", "PyTorch Profiler (0)", 0, 2000, pid="Spans", tid="PyTorch Profiler"),
    event("gloo:", "gloo:all_reduce", 50, 3),
    distributedInfo={"rank": 0, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]},
    deviceProperties=[{"id": 0, "name": "GPU"}],
    baseTimeNanoseconds=10**18,
)

_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 2**31, 2**63, 2**64, 10**400, -(2**63) - 1])
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(max_size=20)
    | st.sampled_from(["kernel", "X", _NCCL, "[0, 1]", "nccl:send 0->1", "stream 7", "\x00", "\ud800"])
)
_anything = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths (tuples of keys) of all values in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner_path for key, inner in items for inner_path in _places(inner, (*path, key)))]


_PLACES = _places(_SEED)


def _replaced(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    """Return a document with `other` in place of the value at `path`, if there is one."""
    if not path:
        return other
    try:
        if isinstance(value, dict):
            return value | {path[0]: _replaced(value[path[0]], path[1:], other)}
        return [*value[: path[0]], _replaced(value[path[0]], path[1:], other), *value[path[0] + 1 :]]
    except (KeyError, IndexError, TypeError):
        return value  # an earlier change removed the value


def _check(trace: Trace) -> None:
    """Check that the columns of a trace are valid."""
    table = trace.events
    rows = len(table)
    assert rows > 0
    assert (np.diff(table.start_ns) >= 0).all()
    assert (table.end_ns >= table.start_ns).all()
    assert table.start_ns[0] == 0
    assert set(table.kind.tolist()) <= set(EventKind)
    assert ((table.name >= 0) & (table.name < len(table.names))).all()
    assert (table.device >= HOST).all()
    assert ((table.correlation == NO_CORRELATION) | (table.correlation > 0)).all()
    assert ((table.size_bytes == NO_SIZE) | (table.size_bytes >= 0)).all()
    assert trace.rank is None or trace.rank >= 0
    assert trace.world_size is None or trace.world_size > 0
    assert all(note.isprintable() for note in trace.notes)
    kernels = [row for row in table.rows_of(EventKind.KERNEL).tolist() if is_communication_kernel(table.name_of(row))]
    if kernels:
        assert [call.row for call in trace.collectives] == kernels
    assert all(call.size_bytes is None or call.size_bytes >= 0 for call in trace.collectives)


def _survives(data: bytes, name: str) -> None:
    """Check that a file with content `data` is read as a valid trace, or refused with a printable error."""
    outcome: Trace | GpudiagError
    with TemporaryDirectory() as directory:
        path = Path(directory) / name
        path.write_bytes(data)
        try:
            (outcome,) = read_traces([path])
        except GpudiagError as error:
            outcome = error
    if isinstance(outcome, Trace):
        _check(outcome)
    else:
        assert outcome.exit_code == 4
        assert str(outcome).isprintable()


@examples(400)
@given(st.lists(st.tuples(st.sampled_from(_PLACES), _anything), min_size=1, max_size=4))
def test_any_value_is_read_or_refused(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    changed = _SEED
    for position, other in changes:
        changed = _replaced(changed, position, other)
    _survives(json.dumps(changed).encode(), "rank0.json")


_TEXT = json.dumps(_SEED, indent=1).encode()


@examples(300)
@given(st.integers(0, len(_TEXT)), st.integers(0, 40), st.binary(max_size=12))
def test_any_bytes_are_read_or_refused(position: int, length: int, other: bytes) -> None:
    _survives(_TEXT[:position] + other + _TEXT[position + length :], "rank0.json")


_PACKED = gzip.compress(_TEXT, mtime=0)


@examples(200)
@given(st.integers(0, len(_PACKED)), st.integers(0, 9), st.binary(max_size=9))
def test_any_gzip_content_is_read_or_refused(position: int, length: int, other: bytes) -> None:
    _survives(_PACKED[:position] + other + _PACKED[position + length :], "rank0.json.gz")


@examples(100)
@given(st.binary(max_size=200), st.sampled_from(["rank0.json", "rank0.json.gz"]))
def test_any_file_is_read_or_refused(data: bytes, name: str) -> None:
    _survives(data, name)
