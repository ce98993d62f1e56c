"""Test the tables of analyses that `import gpudiag` offers."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import gpudiag
from gpudiag.errors import UnreadableInputError
from gpudiag.intervals import own_lengths
from gpudiag.model.analysis import BUCKETS, Analysis
from gpudiag.model.facts import FACTS_SCHEMA
from gpudiag.model.frames import Frames
from gpudiag.model.run_directory import encode_json as encode
from gpudiag.report.text.run import to_csv
from tests.builders import gpt_modules

TRACES = Path(__file__).parents[1] / "traces"


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return gpudiag.analyze(TRACES / "slow_loader_rank2")


@pytest.fixture(scope="module")
def frames(analysis: Analysis) -> Frames:
    return analysis.frames()


def test_analysis_equals_command_output(analysis: Analysis, tmp_path: Path) -> None:
    saved = tmp_path / "analysis.json"
    saved.write_bytes(encode(analysis))
    assert encode(gpudiag.analyze(saved)) == encode(analysis)
    assert json.loads(encode(analysis))["findings"][0]["ranks"] == list(analysis.findings[0].ranks) == [2]


def test_buckets_of_a_device_sum_to_its_step(analysis: Analysis, frames: Frames) -> None:
    summed = frames.buckets.groupby(["rank", "device"])["ms"].sum()
    assert summed.to_dict() == pytest.approx(
        {(device.rank, device.device): device.step_ms for device in analysis.devices}
    )
    assert list(frames.buckets.columns) == ["rank", "device", "bucket", "ms"]
    assert set(frames.buckets["bucket"]) == set(BUCKETS)
    assert frames.devices["step_ms"].to_list() == [device.step_ms for device in analysis.devices]


def test_every_table_has_the_fields_and_rows_of_the_analysis(analysis: Analysis, frames: Frames) -> None:
    assert len(frames.steps) == sum(len(device.step_times_ms) for device in analysis.devices)
    for name in ("waits", "collectives", "kernels", "operators", "findings"):
        rows = getattr(analysis, name)
        assert list(getattr(frames, name).columns) == list(type(rows[0]).__struct_fields__)
        assert len(getattr(frames, name)) == len(rows) > 0
    # Integer columns stay integers if values are missing, and missing figures are not zero.
    assert str(frames.collectives["size_bytes"].dtype) == "Int64"
    assert frames.collectives["probe_busbw_gb_per_s"].isna().all()


def test_empty_tables_have_their_columns(analysis: Analysis) -> None:
    empty = msgspec.structs.replace(analysis, devices=(), waits=(), findings=(), kernels=(), collectives=())
    frames = empty.frames()
    assert [len(frame) for frame in (frames.buckets, frames.waits, frames.steps, frames.findings)] == [0, 0, 0, 0]
    assert frames.waits["ms_per_step"].sum() == 0
    assert to_csv(empty).splitlines() == [to_csv(analysis).splitlines()[0]]


def test_modules_have_a_row_for_each_device(analysis: Analysis, frames: Frames) -> None:
    assert len(frames.modules) == 0
    named = msgspec.structs.replace(analysis, modules=gpt_modules(len(analysis.devices)))
    modules = named.frames().modules
    assert list(modules.columns) == list(frames.modules.columns)
    assert len(modules) == 4 * len(gpt_modules().times)
    of_one = modules[(modules["rank"] == 3) & (modules["path"] == "blocks.5.attention")]
    assert of_one[["type", "forward_ms", "own_backward_ms"]].to_numpy().tolist() == [["Attention", 0.5, 0.5]]
    own_ms = modules.groupby("rank")[["own_forward_ms", "own_backward_ms"]].sum().sum(axis=1)
    roots = modules[modules["path"] == ""].groupby("rank")[["forward_ms", "backward_ms"]].sum().sum(axis=1)
    assert own_ms.to_list() == pytest.approx(roots.to_list())


def test_unprofiled_steps_are_listed_beside_recorded_ones(analysis: Analysis) -> None:
    timed = msgspec.structs.replace(analysis.steps, unprofiled_times_ms=(3.0, 4.0))
    steps = msgspec.structs.replace(analysis, steps=timed).frames().steps
    assert steps[steps["kind"] == "timed"]["ms"].to_list() == [3.0, 4.0]
    assert set(steps[steps["kind"] == "recorded"]["rank"]) == {0, 1, 2, 3}


def test_operators_have_exclusive_time(analysis: Analysis) -> None:
    import numpy as np

    start, end = np.array([0, 1, 5, 6, 20]), np.array([10, 4, 9, 7, 21])
    assert own_lengths(start, end).tolist() == [3, 3, 3, 1, 1]
    own_ms = [operator.own_ms_per_step for operator in analysis.operators]
    assert own_ms == sorted(own_ms, reverse=True)
    assert 0 < sum(own_ms) < 4 * analysis.steps.mean_ms


def test_runs_are_compared_by_path_or_as_analyses(analysis: Analysis) -> None:
    diff = gpudiag.compare(TRACES / "clean", analysis)
    assert diff.steps[0].difference_ms == pytest.approx(analysis.steps.mean_ms - diff.steps[0].before_ms)
    assert max(diff.buckets, key=lambda bucket: bucket.difference_ms).bucket == "communication_wait"


def test_facts_are_found_in_a_file_or_a_run_directory(tmp_path: Path) -> None:
    machine = Path(__file__).parents[1] / "machines" / "h200x4.json"
    assert gpudiag.load_facts(machine).schema == FACTS_SCHEMA
    (tmp_path / "facts.json").write_bytes(machine.read_bytes())
    assert gpudiag.load_facts(tmp_path) == gpudiag.load_facts(str(machine))
    with pytest.raises(UnreadableInputError):
        gpudiag.load_facts(tmp_path / "none")
