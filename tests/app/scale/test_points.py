"""Test which points are measured, in which order, and with which ids."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpudiag.app.scale.launches import next_launch, plan
from gpudiag.app.scale.points import Point, Site, all_points, halved
from gpudiag.errors import HardwareMissingError, UsageError
from gpudiag.model.benchmarks.scale_request import ScaleRequest
from gpudiag.model.job import RunOptions

if TYPE_CHECKING:
    from gpudiag.model.benchmarks.sweep import SweepPlan

GPUS = Site(gpus=4, cpus=16)
CPUS = Site(gpus=0, cpus=2)
NOWHERE = Path("nowhere")


def request(**given: Any) -> ScaleRequest:
    return ScaleRequest(run=RunOptions(workload=""), output=NOWHERE, **given)


def names(found: list[Point]) -> list[tuple[str, int]]:
    return [(point.record.strategy, point.record.devices) for point in found if not point.record.alone]


def test_largest_point_and_baseline_of_the_first_strategy_come_first() -> None:
    points = all_points(
        request(workloads=("resnet50",), strategies=("nccl", "cpu-reduce", "independent"), alone=False), GPUS
    )
    assert names(points)[:2] == [("nccl", 4), ("nccl", 1)]
    assert names(points)[-1] == ("cpu-reduce", 2)
    # cpu-reduce needs several devices. On one device `independent` replaces cpu-reduce, and runs only once.
    assert names(points).count(("independent", 1)) == 1
    assert ("cpu-reduce", 1) not in names(points)


def test_one_device_is_measured_with_peer_access_only() -> None:
    points = all_points(request(workloads=("resnet50",), strategies=("nccl", "nccl-no-p2p"), alone=False), GPUS)
    assert names(points).count(("nccl", 1)) == 1
    assert ("nccl-no-p2p", 1) not in names(points)
    assert [point.job.p2p for point in points if point.record.strategy == "nccl-no-p2p"] == [False, False]


def test_precisions_batches_and_compiler_are_combined() -> None:
    ladder = {"precisions": ("fp32", "fp16"), "batch_sizes": (64, 128), "compiled": (False, True)}
    points = all_points(
        request(workloads=("resnet50",), strategies=("nccl",), devices=(1,), alone=False, **ladder), GPUS
    )
    rungs = {(point.job.precision, point.job.batch_size, point.job.compile) for point in points}
    assert len(rungs) == len(points) == 8
    assert {point.record.options.get("compile") for point in points} == {None, "True"}


def test_cpus_have_no_tf32() -> None:
    points = all_points(request(workloads=("mlp",), strategies=("gloo",), precisions=("fp32", "tf32")), CPUS)
    assert {point.record.precision for point in points} == {"fp32"}


def test_each_gpu_is_measured_alone() -> None:
    points = all_points(request(workloads=("resnet50", "mlp")), GPUS)
    alone = [point.record for point in points if point.record.alone]
    assert [record.device_indices for record in alone] == [(0,), (1,), (2,), (3,)]
    assert {record.workload for record in alone} == {"resnet50"}


def test_every_pair_of_gpus_is_measured() -> None:
    points = all_points(request(workloads=("resnet50",), strategies=("nccl",), pairs=True), GPUS)
    pairs = {point.record.device_indices for point in points if point.record.devices == 2}
    assert len(pairs) == 6


def test_point_id_does_not_depend_on_other_points() -> None:
    few = all_points(request(workloads=("resnet50",), strategies=("nccl",), devices=(4,), alone=False), GPUS)
    many = all_points(
        request(workloads=("mlp", "resnet50"), strategies=("independent", "nccl"), data=("host", "device")), GPUS
    )
    assert {point.record.id for point in few} <= {point.record.id for point in many}
    ids = [point.record.id for point in many]
    assert len(ids) == len(set(ids))


def test_strong_scaling_refuses_batches_that_do_not_divide() -> None:
    points = all_points(request(workloads=("mlp",), devices=(1, 2, 4), batch_sizes=(50,), mode="strong"), GPUS)
    by_size = {point.record.devices: point.record for point in points}
    assert by_size[2].batch_per_device == 25
    assert by_size[2].global_batch == by_size[1].global_batch == 50
    assert by_size[4].status == "failed"
    assert "does not divide" in (by_size[4].error or "")


def test_weak_and_strong_points_have_different_ids() -> None:
    weak = all_points(request(workloads=("mlp",), devices=(1,), batch_sizes=(64,), alone=False), GPUS)
    strong = all_points(request(workloads=("mlp",), devices=(1,), batch_sizes=(64,), mode="strong"), GPUS)
    assert not {point.record.id for point in weak} & {point.record.id for point in strong}


@pytest.mark.parametrize(
    ("given", "site", "error", "words"),
    [
        ({"devices": (8,)}, GPUS, HardwareMissingError, "has 4 GPUs"),
        ({"devices": (8,)}, CPUS, HardwareMissingError, "no GPU"),
        ({"strategies": ("nccl",)}, CPUS, HardwareMissingError, "needs GPUs"),
        ({"strategies": ("gloo-no-p2p",)}, CPUS, UsageError, "needs GPUs"),
        ({"strategies": ("telepathy",)}, GPUS, UsageError, "no strategy"),
        ({"workloads": ("lenet",)}, GPUS, UsageError, "no workload"),
        ({"precisions": ("fp8",)}, GPUS, UsageError, "--precision"),
        ({"memory_formats": ("chwn",)}, GPUS, UsageError, "--memory-format"),
        ({"data": ("tape",)}, GPUS, UsageError, "--data"),
    ],
)
def test_unknown_names_and_missing_hardware_are_refused(
    given: dict[str, Any], site: Site, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        all_points(request(**given), site)


def test_halved_batch_is_a_new_point() -> None:
    point = all_points(request(workloads=("mlp",), alone=False), GPUS)[0]
    half = halved(point)
    assert half.record.batch_per_device == point.record.batch_per_device // 2 == half.job.batch_size
    assert half.record.halved_from == point.record.id != half.record.id


def test_points_with_different_peer_access_do_not_share_processes() -> None:
    points = all_points(request(workloads=("mlp",), strategies=("nccl", "nccl-no-p2p"), alone=False), GPUS)
    first = next_launch(points, points[:2])
    rest = [point for point in points if point not in first.timed]
    assert {point.record.strategy for point in first.timed} == {"nccl"}
    assert {point.record.strategy for point in next_launch(rest, []).timed} == {"nccl-no-p2p"}
    assert first.processes == 4


def test_profiled_windows_come_last_and_keep_a_share_of_the_budget() -> None:
    points = all_points(request(workloads=("mlp",), strategies=("nccl",), alone=False), GPUS)
    made: SweepPlan = plan(next_launch(points, points[:2]), request(), 100.0)
    assert [entry.recorded for entry in made.entries] == [False, False, False, True, True]
    assert made.entries[0].not_after_s == pytest.approx(70.0)
    assert made.entries[-1].not_after_s == 100.0
    assert made.entries[-1].directory.endswith("/profile")
