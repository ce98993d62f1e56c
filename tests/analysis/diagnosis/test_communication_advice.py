"""Test that advice on communication fits the strategy and does not blame links that reach their rated bandwidth."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.analysis.diagnosis.rules.communication_advice import LINKS, communication_advice, links_in_doubt
from gpudiag.trace import read_traces
from tests.analysis.diagnosis.cases import case_of
from tests.analysis.diagnosis.rule_examples.jobs import Job, all_reduce, kernels, update
from tests.analysis.diagnosis.test_probe_what_if import curve, probed
from tests.analysis.diagnosis.test_unused_nvlink import on
from tests.conftest import WHOLE
from tests.timeline_builder import TraceBuilder
from tests.trace.documents import TRACES
from tests.traces.pack import unpack

if TYPE_CHECKING:
    from pathlib import Path

    from gpudiag.analysis.diagnosis.case import Case

JOB = case_of(Job(ranks=4, step=(kernels(10), all_reduce(10, megabytes=100), update(1))).traces())


def exchanging(operation: str, enqueue: str, around: str = "") -> Case:
    """Make two ranks on CPUs that compute for 20 ms and then wait 20 ms for a collective.

    The collective is enqueued within the range `around`.
    """
    ranks = [TraceBuilder(rank, world_size=2) for rank in range(2)]
    for trace in ranks:
        for step in range(6):
            trace.step(step * 50_000).operator(1_000, 20_000, "aten::convolution_backward")
            if around:
                trace.operator(20_050, 20_350, around)
            trace.operator(20_100, 20_300, enqueue)
            trace.gloo(20_200, 40_000, operation, thread=91, ranks=(0, 1), size_bytes=1 << 20)
            trace.operator(40_020, 49_900, "aten::add_")
    return case_of([trace.build() for trace in ranks])


def words(case: Case, *, by_calls: bool = False) -> str:
    advice = communication_advice(case, by_calls=by_calls)[2:]
    return " ".join(line if isinstance(line, str) else line.line for line in advice)


@pytest.mark.parametrize(
    ("operation", "enqueue", "around", "said"),
    [
        ("all_reduce", "c10d::allreduce_", "", "async_op"),
        ("all_reduce", "c10d::allreduce_", "torch::autograd::AccumulateGrad", "no_sync"),
        ("all_reduce", "c10d::allreduce_", "torch::distributed::reducer::mul_out", "no_sync"),
        ("all_gather", "c10d::_allgather_base_", "", "reshard_after_forward"),
        ("reduce_scatter", "c10d::_reduce_scatter_base_", "", "reshard_after_forward"),
        ("broadcast", "c10d::broadcast_", "", "among all ranks"),
    ],
)
def test_advice_fits_the_strategy_of_the_job(operation: str, enqueue: str, around: str, said: str) -> None:
    assert said in words(exchanging(operation, enqueue, around))


@pytest.mark.parametrize(("name", "said"), [("vgg_p2poff", "no_sync"), ("clean", "no_sync")])
def test_recorded_ddp_jobs_are_advised_to_use_no_sync(name: str, said: str) -> None:
    assert said in words(case_of(read_traces([TRACES / name])))


def test_compression_is_not_advised_for_tiny_transfers() -> None:
    """The job trains a small network on two CPU processes."""
    advice = communication_advice(case_of(read_traces([TRACES / "gloo_dataloader"])), by_calls=False)
    assert len(advice) == 1
    assert "compression saves nothing" in str(advice[0])


def test_ddp_advice_is_conditional_without_evidence_of_ddp() -> None:
    assert "With DistributedDataParallel" in words(JOB)


def test_recorded_fsdp_job_is_advised_about_resharding(tmp_path: Path) -> None:
    unpack(WHOLE / "exchanges" / "vgg16-fsdp.npz", tmp_path)
    assert "reshard_after_forward" in words(case_of(read_traces([tmp_path])))


def test_user_defined_communication_gets_no_ddp_advice() -> None:
    found = next(iter(diagnose(exchanging("all_reduce", "c10d::allreduce_")).findings))
    assert found.code == "communication-bound"
    assert not [line for line in found.advice if "bf16_compress_hook" in line or "bucket_cap_mb" in line]


def test_one_device_alone_has_no_communication_bound_finding() -> None:
    (trace,) = Job(ranks=1, step=(kernels(10), all_reduce(10, megabytes=100), update(1))).traces()
    alone = diagnose(case_of([trace]))
    assert "communication-bound" not in {finding.code for finding in alone.findings}
    assert "communication_transfer" not in {explained.bucket for explained in alone.explained}
    found = next(found for found in diagnose(JOB).findings if found.code == "communication-bound")
    assert LINKS in found.advice


@pytest.mark.parametrize(("probe_us", "checked"), [(9_900.0, False), (5_000.0, True)])
def test_links_at_the_probed_rate_are_not_blamed(probe_us: float, *, checked: bool) -> None:
    case = replace(JOB, facts=probed(*curve("nccl", (100, probe_us))))
    found = next(finding for finding in diagnose(case).findings if finding.code == "communication-bound")
    assert (LINKS in found.advice) == checked


@pytest.mark.parametrize(("busbw", "board", "checked"), [
    (300.0, "NVIDIA H200", False),
    (100.0, "NVIDIA H200", True),
    (300.0, "a board of another name", True),
])  # fmt: skip
def test_links_near_the_nvlink_rate_are_not_blamed(busbw: float, board: str, *, checked: bool) -> None:
    assert links_in_doubt(on(*[board] * 4, case=JOB), busbw, None) == checked


@pytest.mark.parametrize(
    ("operation", "enqueue", "around", "said"),
    [
        ("all_reduce", "c10d::allreduce_", "torch::autograd::AccumulateGrad", "gradient_as_bucket_view"),
        ("all_gather", "c10d::_allgather_base_", "", "reshard_after_forward"),
        ("all_reduce", "c10d::allreduce_", "", "async_op"),
    ],
)
def test_ddp_is_advised_to_make_fewer_calls_if_calls_are_the_cost(
    operation: str, enqueue: str, around: str, said: str
) -> None:
    case = exchanging(operation, enqueue, around)
    advised = words(case, by_calls=True)
    assert said in advised
    assert ("bf16" in advised) == ("bf16" in words(case) and said != "gradient_as_bucket_view")


@pytest.mark.parametrize(
    ("busbw", "probed_at", "checked"),
    [(None, None, True), (None, 100.0, True), (75.0, 100.0, False), (74.9, 100.0, True), (120.0, 100.0, False)],
)
def test_links_are_blamed_below_three_quarters_of_the_probed_rate(
    busbw: float | None, probed_at: float | None, *, checked: bool
) -> None:
    assert links_in_doubt(JOB, busbw, probed_at) == checked
    assert not links_in_doubt(exchanging("all_reduce", "c10d::allreduce_"), busbw, probed_at)


def test_links_are_blamed_below_half_of_the_nvlink_rate() -> None:
    names = ["NVIDIA H200"] * 4
    assert not links_in_doubt(on(*names, case=JOB), 225.0, None)
    assert links_in_doubt(on(*names, case=JOB), 224.9, None)
    assert links_in_doubt(on(*names[1:], "NVIDIA B200", case=JOB), 225.0, None)


def several(*calls: tuple[str, int], packed: bool = False, own: int = 1, hooked: int = 0) -> str:
    """Return the advice for ranks that wait for `calls`, given as (operation, µs), in each step.

    The loop enqueues `own` all-reduces, and hooks enqueue `hooked` all-reduces. If `packed`, DDP copies a bucket.
    """
    ranks = [TraceBuilder(rank, world_size=2) for rank in range(2)]
    for trace in ranks:
        for step in range(6):
            trace.step(step * 100_000).operator(1_000, 9_000, "aten::convolution_backward")
            at = 10_000
            if packed:
                trace.operator(at, at + 50, "torch::distributed::reducer::mul_out")
            for held in (False,) * own + (True,) * hooked:
                if held:
                    trace.operator(at + 100, at + 400, "torch::autograd::AccumulateGrad")
                trace.operator(at + 150, at + 350, "c10d::allreduce_").operator(at + 200, at + 300, "gloo::all_reduce")
                at += 1_000
            for operation, length in calls:
                trace.gloo(at, at + length, operation, thread=91, ranks=(0, 1), size_bytes=1 << 20)
                at += length
            trace.operator(at, 99_900, "aten::add_")
    return words(case_of([trace.build() for trace in ranks]))


def test_advice_is_for_the_strategy_with_most_communication_time() -> None:
    assert "reshard_after_forward" in several(("all_gather", 6000), ("reduce_scatter", 4001), ("all_reduce", 10_000))
    assert "reshard_after_forward" not in several(
        ("all_gather", 6000), ("reduce_scatter", 4000), ("all_reduce", 10_000)
    )
    assert "among all ranks" in several(("broadcast", 5001), ("reduce", 5000), ("all_reduce", 10_000))
    assert "async_op" in several(("broadcast", 5000), ("reduce", 5000), ("all_reduce", 10_000))


def test_loop_calls_collectives_if_most_are_outside_of_operators() -> None:
    assert "async_op" in several(("all_reduce", 10_000), own=2, hooked=1)
    assert "async_op" not in several(("all_reduce", 10_000), own=1, hooked=1)
    assert "async_op" not in several(("all_reduce", 10_000), own=3, packed=True)
