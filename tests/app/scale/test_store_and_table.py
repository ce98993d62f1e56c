"""Test how points are saved, continued and shown in tables."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpudiag.analysis.scaling.measured import which_gpus, with_figures
from gpudiag.analysis.scaling.table import results_table
from gpudiag.app.scale.store import Store, check_machine, writing
from gpudiag.app.table import read_points
from gpudiag.errors import GpudiagError, UnreadableInputError, UsageError
from gpudiag.model.benchmarks.scaling import SCALING_FILE, Machine, Scaling
from gpudiag.model.benchmarks.sweep import EntryOutcome
from gpudiag.model.run import RankRecord, RunRecord, StepTimes, Warmup
from gpudiag.model.run_directory import RUN_FILE, write_json
from gpudiag.report.text.results import to_markdown
from tests.app.scale.points import HERE, measured
from tests.machines import machine

if TYPE_CHECKING:
    from pathlib import Path

    from gpudiag.model.run import RunStatus


def times(step_ms: float, jitter: float = 0.1) -> StepTimes:
    series = tuple(step_ms + jitter * (i % 3 - 1) for i in range(30))
    return StepTimes(step_ms=series, mean_ms=step_ms, median_ms=step_ms, standard_error_ms=0.02, jitter_ms=jitter)


def record(
    *step_ms: float, status: RunStatus = "complete", error: str | None = None, strategy: str = "nccl"
) -> RunRecord:
    """Return the record of a run with a rank for each step time in ms."""
    ranks = tuple(
        RankRecord(
            rank=i,
            local_rank=i,
            host="here",
            pid=1,
            device=f"cuda:{i}",
            device_name="H200",
            warmup=Warmup(steps=10, seconds=1.0, automatic=True, settled=True),
            unprofiled=times(ms),
        )
        for i, ms in enumerate(step_ms)
    )
    return RunRecord(
        created="2026-01-01T00:00:00Z",
        command=(),
        workload="resnet50",
        framework="pytorch",
        strategy=strategy,
        world_size=len(step_ms),
        nodes=1,
        batch_size_per_device=64,
        options={"precision": "bf16", "memory_format": "nhwc", "data": "device"},
        software={"torch": "2.11"},
        ranks=ranks,
        status=status,
        error=error,
    )


def test_throughput_with_communication_is_that_of_the_slowest_rank() -> None:
    point = with_figures(measured(2, 1.0), record(40.0, 50.0), None, HERE)
    assert point.samples_per_s == pytest.approx(128 / 0.05)
    assert point.per_device_samples_per_s == pytest.approx((64 / 0.04, 64 / 0.05))
    assert point.settled


def test_throughput_without_communication_is_the_sum_over_ranks() -> None:
    point = with_figures(
        measured(2, 1.0, strategy="independent"), record(40.0, 50.0, strategy="independent"), None, HERE
    )
    assert point.samples_per_s == pytest.approx(64 / 0.04 + 64 / 0.05)


@pytest.mark.parametrize(
    ("run", "outcome", "words"),
    [
        (None, None, "without two unprofiled steps"),
        (None, EntryOutcome(began="", error="out of memory", out_of_memory=True), "out of memory"),
        (record(40.0, 50.0, status="failed", error="rank 1 was ended by SIGKILL"), None, "SIGKILL"),
    ],
)
def test_failed_point_keeps_its_error(run: RunRecord | None, outcome: EntryOutcome | None, words: str) -> None:
    point = with_figures(measured(2, 1.0), run, outcome, HERE)
    assert point.status == "failed"
    assert words in (point.error or "")


def test_saved_points_are_read_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    points = [measured(1, 30.0), measured(4, 40.0)]
    for point in points:
        store.save(point)
    assert Store(tmp_path).points() == {point.id: point for point in points}


def test_point_with_older_schema_is_renamed_and_measured_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    point = measured(1, 30.0)
    store.save(point)
    path = store.directory(point.id) / "point.json"
    path.write_text(path.read_text().replace("scale-point/1", "scale-point/0"))
    again = Store(tmp_path)
    assert again.points() == {}
    assert "measured again" in again.notes[0]
    assert json.loads((path.with_suffix(".json.old")).read_text())["schema"] == "gpudiag/scale-point/0"


def test_full_disk_gives_a_hint(tmp_path: Path) -> None:
    with pytest.raises(GpudiagError, match="no space left") as caught, writing(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert "repeat the command" in caught.value.hint


def test_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file"):
        Store(tmp_path / "file")


def test_points_of_another_machine_are_refused(tmp_path: Path) -> None:
    point = measured(1, 30.0)
    check_machine({point.id: point}, HERE, tmp_path)
    other = msgspec.structs.replace(HERE, software={"torch": "2.13"})
    with pytest.raises(UsageError, match=r"torch 2.11 and not 2.13"):
        check_machine({point.id: point}, other, tmp_path)


def test_machines_with_equal_hardware_are_distinguished() -> None:
    here = msgspec.structs.replace(HERE, which="0a1b2c3d")
    (words,) = here.differences(msgspec.structs.replace(HERE, which="ffffffff"))
    assert words == "the GPUs of machine 0a1b2c3d and not ffffffff"
    assert here.differences(HERE) == []


def test_gpus_are_distinguished_by_uuid() -> None:
    known = machine("h200x4")
    assert which_gpus(known) == ""  # the saved inventory has no UUIDs
    gpus = tuple(msgspec.structs.replace(gpu, uuid=f"GPU-{gpu.index}") for gpu in known.gpus)
    facts = msgspec.structs.replace(known, gpus=gpus)
    assert len(which_gpus(facts)) == 8
    assert which_gpus(facts) == which_gpus(facts)
    turned = msgspec.structs.replace(facts, gpus=facts.gpus[::-1])
    assert which_gpus(turned) != which_gpus(facts)


def test_unknown_property_is_no_difference() -> None:
    assert HERE.differences(Machine()) == []
    assert HERE.differences(msgspec.structs.replace(HERE, software={"driver": "580", "python": "3.12"})) == []


def test_strategies_of_one_machine_are_ranked_with_ties() -> None:
    rows = [measured(4, 40.0), measured(4, 40.1, strategy="ps-gpu"), measured(4, 80.0, strategy="cpu-reduce")]
    table = results_table([("a", row) for row in [*rows, measured(4, 35.0, strategy="independent")]])
    (group,) = table.groups
    (environment,) = group.environments
    ranks = {row.point.strategy: row.rank for row in environment.rows}
    assert ranks == {"nccl": 1, "ps-gpu": 1, "cpu-reduce": 3, "independent": None}


def test_machines_are_listed_side_by_side_without_ranking() -> None:
    other = Machine(host="there", gpus=("V100",) * 4, software={"torch": "2.4"})
    table = results_table([("a", measured(4, 40.0)), ("b", measured(4, 90.0, machine=other))])
    (group,) = table.groups
    assert len(group.environments) == 2
    assert all(row.rank is None for environment in group.environments for row in environment.rows)
    assert "GPUs" in group.refusals[0]
    assert "torch 2.11 and not 2.4" in group.refusals[0]


def test_different_modes_and_batches_are_not_ranked_together() -> None:
    rows = [
        measured(4, 40.0),
        measured(4, 12.0, mode="strong", batch_per_device=8),
        measured(4, 20.0, batch_per_device=32),
    ]
    table = results_table([("a", row) for row in rows])
    assert len(table.groups) == 3
    assert any("kind of scaling weak and strong" in refusal for refusal in table.refusals)
    assert any("samples per device 64 and 32" in refusal for refusal in table.refusals)


def test_single_run_is_a_result(tmp_path: Path) -> None:
    write_json(tmp_path / RUN_FILE, record(40.0, 40.0))
    (point,) = read_points(tmp_path)
    assert (point.devices, point.batch_per_device, point.precision) == (2, 64, "bf16")
    assert point.samples_per_s == pytest.approx(128 / 0.04)


def test_loop_without_batch_size_has_step_time_but_no_throughput(tmp_path: Path) -> None:
    own = msgspec.structs.replace(record(40.0, 41.0), strategy="own", batch_size_per_device=None, options={})
    write_json(tmp_path / RUN_FILE, own)
    (point,) = read_points(tmp_path)
    assert (point.status, point.samples_per_s, point.step_ms) == ("measured", None, 41.0)
    text = to_markdown(results_table([("own", point)]))
    assert "## resnet50 · samples per step not recorded · 2 devices" in text
    assert "unknown" not in text.partition("|")[0]
    assert "| own | — |  | 41.0 |" in text


def test_benchmark_without_conclusion_is_read_from_its_points(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(measured(1, 30.0))
    store.save(measured(4, 40.0))
    assert sorted(point.efficiency or 0 for point in read_points(tmp_path)) == pytest.approx([0.75, 1.0])


def test_result_with_older_schema_is_refused_by_name(tmp_path: Path) -> None:
    write_json(tmp_path / SCALING_FILE, Scaling(schema="gpudiag/scaling/0", workload="resnet50"))
    with pytest.raises(UnreadableInputError, match="gpudiag/scaling/0"):
        read_points(tmp_path)


def test_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInputError, match="holds no results"):
        read_points(tmp_path)
    with pytest.raises(UnreadableInputError, match="does not exist"):
        read_points(tmp_path / "nowhere")
