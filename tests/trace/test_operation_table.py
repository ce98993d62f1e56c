"""Test the reader of tables of operations."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpudiag.errors import NotATraceError, TooLargeError, UnreadableInputError
from gpudiag.model.parallelism.operations import FORWARD, KIND_CODES
from gpudiag.trace.operation_table import ExtraMissingError, read_operation_table
from gpudiag.trace.sources import find_operation_table
from gpudiag.trace.unpack import ReadLimits

TRACES = Path(__file__).parents[1] / "traces"
PUBLISHED = TRACES / "pipelines" / "ST.parquet"

COLUMNS: dict[str, list[Any]] = {
    "dp_rank": [0, 0],
    "stage": [0, 0],
    "rank": [0, 0],
    "step": [7, 7],
    "optype": ["forward-compute", "backward-compute"],
    "start_ts": [1.5, 1.75],
    "duration": [0.25, 0.5],
    "seq_id": [0, 0],
    "mc": [0, 0],
    "mb_id": [0, 0],
    "gmc": [0, 0],
}


def written(path: Path, **changed: list[Any] | None) -> Path:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {name: values for name, values in (COLUMNS | changed).items() if values is not None}
    parquet.write_table(arrow.table(columns), path)
    return path


def test_published_table_is_read() -> None:
    pytest.importorskip("pyarrow")
    table = read_operation_table(PUBLISHED)
    assert len(table) == 6784
    assert (len(np.unique(table.step)), table.data_rank.max(), table.stage.max()) == (32, 1, 3)
    assert table.unknown_kinds == ()
    computes = table.kind == KIND_CODES[FORWARD]
    assert sorted(np.unique(table.microbatch[computes])) == [0, 1, 2, 3]
    assert table.start_ns.dtype == table.duration_ns.dtype == np.int64


def test_times_are_nanoseconds_since_the_first_operation(tmp_path: Path) -> None:
    table = read_operation_table(written(tmp_path / "a.parquet"))
    assert table.start_ns.tolist() == [0, 250_000_000]
    assert table.duration_ns.tolist() == [250_000_000, 500_000_000]
    assert table.step.tolist() == [7, 7]


def test_epoch_times_keep_their_differences(tmp_path: Path) -> None:
    table = read_operation_table(written(tmp_path / "a.parquet", start_ts=[1.7e9 + 0.5, 1.7e9 + 0.75]))
    assert table.start_ns.tolist() == [0, 250_000_000]


@pytest.mark.parametrize("absent", [{"mb_id": None, "gmc": None}, {"mb_id": [0, None], "gmc": [None, 0]}])
def test_microbatches_may_be_missing(tmp_path: Path, absent: dict[str, list[Any] | None]) -> None:
    table = read_operation_table(written(tmp_path / "a.parquet", **absent))
    assert set(table.microbatch.tolist()) <= {-1, 0}


def test_unknown_kinds_are_left_out_and_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", optype=["forward-compute", "evil\x1b[31m"])
    table = read_operation_table(path)
    assert len(table) == 1
    assert table.unknown_kinds == ("evil\N{REPLACEMENT CHARACTER}[31m",)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"optype": None}, NotATraceError),
        ({"optype": ["a", "b"]}, NotATraceError),
        ({"optype": [None, None]}, NotATraceError),
        ({"duration": [0.1, -1.0]}, UnreadableInputError),
        ({"duration": [0.1, float("nan")]}, UnreadableInputError),
        ({"start_ts": [0.1, 1e300]}, UnreadableInputError),
        ({"start_ts": ["a", "b"]}, UnreadableInputError),
        ({"stage": [0.5, 1.5]}, UnreadableInputError),
        ({"stage": [None, 0]}, UnreadableInputError),
        ({"stage": [0, 2**40]}, UnreadableInputError),
        ({"dp_rank": ["0", "1"]}, UnreadableInputError),
        ({name: [] for name in COLUMNS}, UnreadableInputError),
    ],
)
def test_wrong_columns_are_refused(tmp_path: Path, changed: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        read_operation_table(written(tmp_path / "a.parquet", **changed))


def test_large_tables_are_refused_before_they_are_read(tmp_path: Path) -> None:
    with pytest.raises(TooLargeError, match="2 rows"):
        read_operation_table(written(tmp_path / "a.parquet"), ReadLimits(max_bytes=700))


@pytest.mark.parametrize("at", [4, 200, 2000, 20_000, 41_000])
def test_damaged_files_are_refused(tmp_path: Path, at: int) -> None:
    pytest.importorskip("pyarrow")
    data = bytearray(PUBLISHED.read_bytes())
    data[at : at + 64] = bytes(64)
    path = tmp_path / "damaged.parquet"
    path.write_bytes(data)
    with contextlib.suppress(UnreadableInputError):  # damaged values may still be valid
        read_operation_table(path)
    path.write_bytes(PUBLISHED.read_bytes()[:at])
    with pytest.raises(UnreadableInputError):
        read_operation_table(path)


def test_files_that_are_not_parquet_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.parquet"
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(NotATraceError, match="no Parquet"):
        read_operation_table(path)
    with pytest.raises(UnreadableInputError, match=r"missing\.parquet"):
        read_operation_table(tmp_path / "missing.parquet")


def test_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ExtraMissingError, match="needs pyarrow") as raised:
        read_operation_table(PUBLISHED)
    assert "pip install 'gpudiag[tables]'" in raised.value.hint


def test_table_is_found_among_paths(tmp_path: Path) -> None:
    directory = tmp_path / "job"
    directory.mkdir()
    assert find_operation_table([directory]) is None
    path = directory / "TABLE.Parquet"
    path.write_bytes(b"PAR1")
    assert find_operation_table([str(path)]) == find_operation_table([directory]) == path
    assert find_operation_table([tmp_path / "none"]) is None
    with pytest.raises(UnreadableInputError, match="several inputs"):
        find_operation_table([path, directory])
    (directory / "second.parquet").write_bytes(b"PAR1")
    with pytest.raises(UnreadableInputError, match="several inputs"):
        find_operation_table([directory])


def test_directory_with_traces_and_tables_counts_as_traces(tmp_path: Path) -> None:
    (tmp_path / "data.parquet").write_bytes(b"PAR1")
    trace = TRACES / "tiny" / "rank0.pt.trace.json.gz"
    (tmp_path / trace.name).write_bytes(trace.read_bytes())
    assert find_operation_table([tmp_path]) is None


def test_links_in_directories_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link.parquet").symlink_to(PUBLISHED)
    assert find_operation_table([tmp_path]) is None
