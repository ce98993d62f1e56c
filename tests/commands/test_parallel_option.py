"""Test reading and checking `--parallel`."""

from __future__ import annotations

from typing import Any

import pytest

from gpudiag.app.profile.parallel import check_parallel, check_sizes
from gpudiag.commands.command_line.parallel_option import read_layout
from gpudiag.errors import UsageError
from gpudiag.model.job import CommunicationOptions, RunOptions
from gpudiag.model.run import ParallelLayout
from gpudiag.training.jobs.parallel.sizes import CPU_SIZES, GPU_SIZES


def options(layout: str, **changes: Any) -> RunOptions:
    return RunOptions(**({"workload": "gpt", "parallel": read_layout(layout)} | changes))


def test_layout_is_read_with_defaults() -> None:
    layout = read_layout("pp=2,dp=2")
    assert layout == ParallelLayout(pp=2, dp=2, microbatches=4, schedule="1f1b")
    assert layout.processes == 4
    assert str(layout) == "pp=2,dp=2,microbatches=4,schedule=1f1b"
    assert read_layout(None) is None


@pytest.mark.parametrize("text", ["pp=4,microbatches=8,schedule=gpipe", "dp=2,ep=2,cp=2,tp=2", "dp=1"])
def test_text_of_layout_reads_as_the_same_layout(text: str) -> None:
    layout = read_layout(text)
    assert str(layout) == text
    assert read_layout(str(layout)) == layout


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not ''"),
        ("pp", "not 'pp'"),
        ("sp=2", "not 'sp=2'"),
        ("pp=2,pp=4", "pp twice"),
        ("tp=0", "not '0'"),
        ("tp=-2", "not '-2'"),
        ("dp=99999999999", "not '99999999999'"),
        ("pp=2,schedule=zb", "no schedule 'zb'"),
        ("dp=2,microbatches=4", "go with pp"),
    ],
)
def test_wrong_text_is_refused(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        read_layout(text)


def test_devices_follow_from_layout() -> None:
    assert check_parallel(options("pp=2,dp=4")).devices == 8
    assert check_parallel(options("pp=2,dp=4", nodes=2)).devices == 4
    assert check_parallel(RunOptions(workload="resnet50")).devices is None


@pytest.mark.parametrize(
    ("layout", "given", "strategy"),
    [
        ("pp=2,dp=2", None, None),
        ("pp=2,dp=2", "fsdp", "fsdp"),
        ("tp=2", None, None),
        ("tp=2,dp=2", None, "fsdp"),
        ("ep=2", None, "fsdp"),
    ],
)
def test_replicas_are_sharded_where_copies_are_impossible(layout: str, given: str | None, strategy: str | None) -> None:
    assert check_parallel(options(layout, strategy=given)).strategy == strategy


@pytest.mark.parametrize(
    ("layout", "changes", "problem"),
    [
        ("dp=2", {"workload": "resnet50"}, "only gpt"),
        ("dp=2", {"framework": "tensorflow"}, "not supported for TensorFlow"),
        ("dp=2", {"devices": 3}, "needs 2 processes in all, not 3"),
        ("dp=3", {"nodes": 2}, "needs 3 processes in all"),
        ("dp=2", {"strategy": "cpu-reduce"}, "cpu-reduce does not go with"),
        ("tp=2,dp=2", {"strategy": "gloo"}, "is DDP"),
        ("ep=2", {"strategy": "nccl"}, "is DDP"),
        ("dp=2", {"compile": True}, "--compile"),
        ("dp=2", {"tries": ("fused",)}, "--try"),
        ("dp=2", {"model": "none"}, "--model"),
        ("dp=2", {"precision": "fp16"}, "fp16"),
        ("dp=2", {"exchange": CommunicationOptions(accumulate=2)}, "--accumulate"),
    ],
)
def test_impossible_job_is_refused(layout: str, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        check_parallel(options(layout, **changes))


@pytest.mark.parametrize(
    ("layout", "batch_size", "problem"),
    [
        ("pp=9", None, "9 stages, and the model has 8 layers"),
        ("pp=6,schedule=interleaved", None, "12 stages"),
        ("pp=4,microbatches=6,schedule=interleaved", None, "multiple of pp=4"),
        ("tp=3", None, "does not divide the model's 8 attention heads"),
        ("cp=3", None, "does not divide the model's 128 tokens"),
        ("pp=2,microbatches=4", 6, "--batch-size 6"),
    ],
)
def test_layout_that_does_not_divide_the_model_is_refused(layout: str, batch_size: int | None, problem: str) -> None:
    read = read_layout(layout)
    assert read is not None
    with pytest.raises(UsageError, match=problem):
        check_sizes(read, CPU_SIZES, batch_size)


def test_larger_model_on_gpus_can_be_divided_further() -> None:
    check_sizes(ParallelLayout(pp=12, tp=3, microbatches=24), GPU_SIZES, 48)
