"""Test that doubtful runs on one GPU are no baseline of speedups, and that intervals cover the scatter of starts.

`uneven-host.json` has points and step parts of ResNet-50 and VGG-16 on 4 H200 with a slow and uneven host. The command
was `gpudiag scale resnet50 vgg16 --precision bf16 --memory-format nhwc --seconds 2` on 2026-11-22. The host limited
ResNet-50's step, which led to efficiencies of 118 and 132 % and a waterfall with 56 % unexplained.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from gpudiag.analysis.scaling.conclude import conclude
from gpudiag.analysis.scaling.forecast import prospect
from gpudiag.analysis.scaling.measured import together
from gpudiag.analysis.scaling.speedup import again, doubtful, with_scatter
from gpudiag.app.scale.points import NEED_PEERS
from gpudiag.model.benchmarks.scale_request import Network, Wanted
from gpudiag.model.benchmarks.scaling import PointRecord, RecordedSteps, Scaling, StartResult, StepParts
from tests.app.scale.points import measured, parts

RECORDED = json.loads((Path(__file__).parent / "uneven-host.json").read_text())


def concluded(points: list[PointRecord], recorded: dict[str, StepParts], network: Network | None = None) -> Scaling:
    """Return the conclusions from points and from the step parts of recorded points."""
    return conclude(
        points,
        {key: RecordedSteps(directory=key, parts=found) for key, found in recorded.items()},
        None,
        remarks=[],
        mode="weak",
        command=(),
        version="",
        wanted=Wanted(network=network),
        need_peers=NEED_PEERS,
    )


@pytest.fixture(scope="module")
def uneven() -> Scaling:
    points = msgspec.convert(RECORDED["points"], list[PointRecord])
    return concluded(points, msgspec.convert(RECORDED["parts"], dict[str, StepParts]))


def test_no_conclusions_from_a_baseline_on_an_uneven_host(uneven: Scaling) -> None:
    resnet = [point for point in uneven.points if point.workload == "resnet50"]
    assert len(resnet) == 11
    assert all(point.samples_per_s and point.speedup is None and point.efficiency is None for point in resnet)
    assert not any(fall.workload == "resnet50" for fall in uneven.waterfalls)
    assert not any(prospect.workload == "resnet50" for prospect in uneven.prospects)
    assert not any(gpu.odd for gpu in uneven.alone)
    assert any(r.code == "no-baseline-to-trust" and "30.6 ms as nccl" in r.message for r in uneven.remarks)


def test_points_without_contention_keep_their_conclusions(uneven: Scaling) -> None:
    vgg = {(point.strategy, point.devices): point for point in uneven.points if point.workload == "vgg16"}
    assert vgg["nccl", 4].efficiency == pytest.approx(0.93, abs=0.001)
    assert {fall.strategy for fall in uneven.waterfalls} == {"nccl", "nccl-no-p2p"}
    assert any(r.code == "no-waterfall" and "cpu-reduce" in r.message for r in uneven.remarks)


def test_efficiencies_and_unexplained_shares_are_in_range(uneven: Scaling) -> None:
    for point in uneven.points:
        assert point.efficiency_ci95 is None or point.efficiency_ci95[0] <= 1.0
    for fall in uneven.waterfalls:
        assert abs(next(loss.percent for loss in fall.losses if loss.name == "rest")) <= 5.0


def test_efficiency_above_one_makes_the_baseline_doubtful() -> None:
    one, four = measured(1, 30.0), measured(4, 26.0)
    assert "115 %" in doubtful([one, four])[one.id]
    assert doubtful([measured(1, 30.0), measured(4, 29.9)]) == {}


def test_host_paced_point_is_no_baseline() -> None:
    one = measured(1, 30.0, paced_by_host=True)
    assert "its CPU limits it" in doubtful([one])[one.id]


def started(devices: int, *steps_ms: float, **given: object) -> PointRecord:
    points = [measured(devices, ms, **given) for ms in steps_ms]
    found = points[0]
    for other in points[1:]:
        found = together(found, other)
    return found


def test_intervals_cover_the_scatter_of_starts() -> None:
    """Two starts differ by 1 % on average, and the step time of each start is known to 1 %."""
    points = [started(n, 30.0 * n, 30.0 * n * (1 + apart)) for n, apart in ((1, 0.01), (2, -0.01), (4, 0.012))]
    for point in with_scatter(points):
        rates = [start.samples_per_s for start in point.starts]
        assert point.samples_per_s == pytest.approx(sum(rates) / 2)
        low, high = point.ci95 or (0, 0)
        assert low <= min(rates)
        assert max(rates) <= high
        assert 0.01 < (high - low) / 2 / sum(rates) * 2 < 0.05


def test_differing_starts_are_no_baseline_and_start_again() -> None:
    one, two = started(1, 18.0, 30.0), started(2, 31.0, 31.5)
    assert "differ by 67 %" in doubtful(with_scatter([one, two]))[one.id]
    assert [point.id for point in again([one, two], 2)] == [one.id]
    assert again([together(one, measured(1, 29.0)), two], 2) == []


def test_every_point_has_the_requested_starts() -> None:
    one, two = started(1, 30.0, 30.1), measured(2, 31.0)
    assert [point.id for point in again([one, two], 2)] == [two.id]
    assert again([measured(1, 30.0), two], 1) == []


def test_point_with_two_starts_keeps_both_starts() -> None:
    point = started(2, 40.0, 50.0)
    assert point.starts == tuple(
        StartResult(samples_per_s=rate, ci95=(0.99 * rate, 1.01 * rate)) for rate in (128e3 / 40, 128e3 / 50)
    )
    assert point.step_ms == pytest.approx(45)
    assert point.steps == 100


def test_two_points_give_no_forecast() -> None:
    assert prospect([measured(1, 30.0), measured(4, 36.0)], Network(gb_per_s=25.0), None) is None


def test_waterfall_with_strongly_scaled_parts_is_dropped() -> None:
    one, four = measured(1, 30.0), measured(4, 40.0)
    gone = msgspec.structs.replace(parts(compute=40), scaled_by=0.0)
    scaling = concluded([one, four], {one.id: parts(compute=30), four.id: gone})
    assert scaling.waterfalls == ()
    assert any(remark.code == "no-waterfall" for remark in scaling.remarks)
