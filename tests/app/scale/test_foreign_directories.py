"""Test untrusted result directories: nothing outside is written, and reading changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from gpudiag.app.report import write_scaling
from gpudiag.app.scale.scale import conclude_again
from gpudiag.app.scale.store import Store, recorded_directory
from gpudiag.app.table import read_points
from gpudiag.errors import UnreadableInputError
from gpudiag.model.benchmarks.scale_request import ScaleRequest
from gpudiag.model.job import RunOptions
from gpudiag.model.run_directory import ANALYSIS_FILE, RUN_FILE, below, write_json
from tests.app.scale.points import measured

if TYPE_CHECKING:
    from pathlib import Path


def benchmark(directory: Path) -> Path:
    store = Store(directory)
    for devices in (1, 2):
        store.save(measured(devices, 30.0))
    return directory


def state(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", ["scaling.csv", "scaling.md", "scaling.json", "report.html"])
def test_links_at_report_paths_are_replaced(name: str, tmp_path: Path) -> None:
    foreign, victim = benchmark(tmp_path / "foreign"), tmp_path / "bashrc"
    victim.write_text("alias ls='ls --color'\n")
    (foreign / name).symlink_to(victim)
    conclude_again(ScaleRequest(run=RunOptions(workload=""), output=foreign))
    assert victim.read_text() == "alias ls='ls --color'\n"
    assert not (foreign / name).is_symlink()


def test_link_named_by_the_user_is_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    named = tmp_path / "named"
    named.symlink_to(tmp_path / "elsewhere")
    benchmark(named)
    scaling = conclude_again(ScaleRequest(run=RunOptions(workload=""), output=named))
    write_scaling(scaling, named)
    assert (tmp_path / "elsewhere" / "scaling.csv").is_file()


def test_point_with_a_path_as_id_is_left_out(tmp_path: Path) -> None:
    foreign, victim = benchmark(tmp_path / "foreign"), tmp_path / "victim"
    victim.mkdir()
    (victim / RUN_FILE).write_text("{}")
    (victim / ANALYSIS_FILE).write_text("mine")
    (victim / "traces").mkdir()
    (victim / "traces" / "rank0.json").write_text('{"traceEvents": []}')
    before = state(victim)
    directory = next((foreign / "points").iterdir())
    write_json(directory / "point.json", msgspec.structs.replace(measured(1, 30.0), id="../../victim"))
    conclude_again(ScaleRequest(run=RunOptions(workload=""), output=foreign))
    assert state(victim) == before
    assert len(Store(foreign, reading=True).points()) == 1


def test_point_with_a_linked_directory_is_left_out(tmp_path: Path) -> None:
    foreign, victim = tmp_path / "foreign", tmp_path / "victim"
    point = measured(1, 30.0)
    benchmark(foreign)
    (foreign / "points" / point.id).rename(victim)
    (victim / RUN_FILE).write_text("{}")
    (victim / ANALYSIS_FILE).write_text("mine")
    (foreign / "points" / point.id).symlink_to(victim)
    before = state(victim)
    assert recorded_directory(foreign, point.id) is None
    assert point.id not in Store(foreign).points()
    assert state(victim) == before
    with pytest.raises(UnreadableInputError, match="leads out"):
        Store(foreign).clear(point.id)


def test_reading_for_a_table_renames_no_file(tmp_path: Path) -> None:
    foreign = benchmark(tmp_path / "foreign")
    broken = next((foreign / "points").iterdir()) / "point.json"
    broken.write_text("{")
    before = state(foreign)
    assert len(read_points(foreign)) == 1
    assert state(foreign) == before


@pytest.mark.parametrize("relative", ["../up", "points/../../up", "/etc/passwd", "points/../up"])
def test_paths_outside_the_directory_are_refused(relative: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableInputError):
        below(tmp_path, relative)
