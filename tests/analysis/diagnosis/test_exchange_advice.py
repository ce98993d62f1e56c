"""What is advised about an exchange is of the job's own kind, and says nothing of links that carry what they can."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.analysis.diagnosis.examples import Job, all_reduce, kernels, update
from gpudiag.analysis.diagnosis.rules.exchange_advice import LINKS, exchange_advice, links_in_doubt
from gpudiag.trace import read_traces
from tests.analysis.diagnosis.cases import case_of
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


def exchanging(operation: str, hand_over: str, around: str = "") -> Case:
    """Two ranks on CPUs that compute for 20 ms and then wait 20 ms for a collective, handed over within `around`."""
    ranks = [TraceBuilder(rank, world_size=2) for rank in range(2)]
    for trace in ranks:
        for step in range(6):
            trace.step(step * 50_000).operator(1_000, 20_000, "aten::convolution_backward")
            if around:
                trace.operator(20_050, 20_350, around)
            trace.operator(20_100, 20_300, hand_over)
            trace.gloo(20_200, 40_000, operation, thread=91, ranks=(0, 1), size_bytes=1 << 20)
            trace.operator(40_020, 49_900, "aten::add_")
    return case_of([trace.build() for trace in ranks])


def words(case: Case, *, by_calls: bool = False) -> str:
    advice = exchange_advice(case, by_calls=by_calls)[2:]
    return " ".join(line if isinstance(line, str) else line.line for line in advice)


@pytest.mark.parametrize(
    ("operation", "hand_over", "around", "said"),
    [
        ("all_reduce", "c10d::allreduce_", "", "async_op"),
        ("all_reduce", "c10d::allreduce_", "torch::autograd::AccumulateGrad", "no_sync"),
        ("all_reduce", "c10d::allreduce_", "torch::distributed::reducer::mul_out", "no_sync"),
        ("all_gather", "c10d::_allgather_base_", "", "reshard_after_forward"),
        ("reduce_scatter", "c10d::_reduce_scatter_base_", "", "reshard_after_forward"),
        ("broadcast", "c10d::broadcast_", "", "among all ranks"),
    ],
)
def test_advice_is_for_the_way_in_which_the_job_exchanges(
    operation: str, hand_over: str, around: str, said: str
) -> None:
    assert said in words(exchanging(operation, hand_over, around))


@pytest.mark.parametrize(
    ("name", "said"), [("vgg_p2poff", "no_sync"), ("gloo_dataloader", "no_sync"), ("clean", "no_sync")]
)
def test_of_recorded_jobs_under_ddp(name: str, said: str) -> None:
    assert said in words(case_of(read_traces([TRACES / name])))


def test_of_a_recorded_job_under_fsdp(tmp_path: Path) -> None:
    unpack(WHOLE / "exchanges" / "vgg16-fsdp.npz", tmp_path)
    assert "reshard_after_forward" in words(case_of(read_traces([tmp_path])))


def test_a_loop_of_its_own_hears_nothing_of_ddp_in_the_finding() -> None:
    found = next(iter(diagnose(exchanging("all_reduce", "c10d::allreduce_")).findings))
    assert found.code == "communication-bound"
    assert not [line for line in found.advice if "bf16_compress_hook" in line or "bucket_cap_mb" in line]


@pytest.mark.parametrize(("probe_us", "checked"), [(9_900.0, False), (5_000.0, True)])
def test_links_that_carry_what_the_probes_reached_are_not_to_be_checked(probe_us: float, *, checked: bool) -> None:
    case = replace(JOB, facts=probed(*curve("nccl", (100, probe_us))))
    found = next(found for found in diagnose(case).findings if found.code == "communication-bound")
    assert (LINKS in found.advice) == checked


@pytest.mark.parametrize(("busbw", "board", "checked"), [
    (300.0, "NVIDIA H200", False),
    (100.0, "NVIDIA H200", True),
    (300.0, "a board of another name", True),
])  # fmt: skip
def test_nor_are_links_that_carry_most_of_their_nvlink(busbw: float, board: str, *, checked: bool) -> None:
    assert links_in_doubt(on(*[board] * 4, case=JOB), busbw, None) == checked


@pytest.mark.parametrize(
    ("operation", "hand_over", "around", "said"),
    [
        ("all_reduce", "c10d::allreduce_", "torch::autograd::AccumulateGrad", "gradient_as_bucket_view"),
        ("all_gather", "c10d::_allgather_base_", "", "reshard_after_forward"),
        ("all_reduce", "c10d::allreduce_", "", "async_op"),
    ],
)
def test_where_the_calls_cost_and_not_the_transfers_ddp_is_to_make_fewer(
    operation: str, hand_over: str, around: str, said: str
) -> None:
    case = exchanging(operation, hand_over, around)
    advised = words(case, by_calls=True)
    assert said in advised
    assert ("bf16" in advised) == ("bf16" in words(case) and said != "gradient_as_bucket_view")
