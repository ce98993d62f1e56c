"""`gpudiag.profile` in a loop of one's own, in one process."""

from __future__ import annotations

import gzip
import itertools
import json
import logging
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

import gpudiag
from gpudiag.errors import UsageError
from gpudiag.model.run import RUN_SCHEMA, RunRecord
from gpudiag.model.run_directory import read_json

if TYPE_CHECKING:
    from pathlib import Path

QUICK: dict[str, Any] = {"warmup": 3, "steps": 5, "active": 3}


def run_record(run_dir: Path) -> RunRecord:
    return read_json(run_dir / "run.json", RunRecord, RUN_SCHEMA)


def names_in_trace(run_dir: Path, rank: int = 0) -> list[str]:
    path = run_dir / "traces" / f"rank{rank}.pt.trace.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [str(event["name"]) for event in events if event.get("ph") == "X"]


def work() -> None:
    torch.ones(64, 64) @ torch.ones(64, 64)


def test_a_loop_is_measured_and_goes_on(tmp_path: Path) -> None:
    seen = []
    model = torch.nn.Linear(4, 3)
    with gpudiag.profile(tmp_path / "run", **QUICK, model=model, batch_size=7, workload="mine") as prof:
        for batch in prof.steps(range(40)):
            work()
            seen.append(batch)
    assert seen == list(range(40))
    run = run_record(tmp_path / "run")
    assert (run.status, run.error, run.workload, run.strategy) == ("complete", None, "mine", "own")
    assert (run.world_size, run.batch_size_per_device) == (1, 7)
    assert run.model is not None
    assert (run.model.parameters, run.model.gradient_bytes, run.model.gradient_sizes) == (15, 60, (12, 48))
    assert {"python", "torch"} <= set(run.software)
    (rank,) = run.ranks
    assert rank.warmup is not None
    assert (rank.warmup.steps, rank.warmup.automatic) == (3, False)
    assert rank.unprofiled is not None
    assert len(rank.unprofiled.step_ms) == 5
    assert rank.profiled is not None
    assert len(rank.profiled.step_ms) == 3
    assert (rank.device, rank.trace) == ("cpu", "traces/rank0.pt.trace.json.gz")
    names = names_in_trace(tmp_path / "run")
    # 3 of warm-up, 5 timed, 2 that the profiler throws away, 3 recorded.
    assert [name for name in names if name.startswith("gpudiag.step")] == [f"gpudiag.step#{n}" for n in (10, 11, 12)]
    assert names.count("gpudiag.input") == 3
    assert sum(name.startswith("ProfilerStep#") for name in names) == 3
    assert sorted(path.name for path in (tmp_path / "run" / "traces").iterdir()) == ["rank0.pt.trace.json.gz"]


def test_warm_up_is_found(tmp_path: Path) -> None:
    with gpudiag.profile(tmp_path, steps=5, stop=True) as prof:
        for step in prof.steps(itertools.count()):
            time.sleep(0.2 if step == 0 else 0.02)
    warmup = run_record(tmp_path).ranks[0].warmup
    assert warmup is not None
    assert warmup.automatic
    assert warmup.settled
    assert 3 + 6 <= warmup.steps <= 200
    assert warmup.seconds > 0


def test_the_loop_can_be_stopped_when_all_is_measured(tmp_path: Path) -> None:
    steps = 0
    with gpudiag.profile(tmp_path, **QUICK, stop=True) as prof:
        for _ in prof.steps(itertools.count()):
            steps += 1
        assert list(prof.steps(range(5))) == []
    assert steps == 3 + 5 + 2 + 3


def test_epochs_are_joined_and_what_is_between_them_is_no_step(tmp_path: Path) -> None:
    seen = []
    with gpudiag.profile(tmp_path, warmup=3, steps=20, active=3) as prof:
        for _ in range(10):
            for batch in prof.steps([1, 2, 3, 4]):
                seen.append(batch)
                time.sleep(0.001)
            time.sleep(0.1)
    assert seen == [1, 2, 3, 4] * 10
    (rank,) = run_record(tmp_path).ranks
    assert rank.unprofiled is not None
    assert max(rank.unprofiled.step_ms) < 100
    marks = [name for name in names_in_trace(tmp_path) if name.startswith("gpudiag.step")]
    assert marks == sorted(set(marks))


def test_a_loop_left_with_break_goes_on_with_the_next(tmp_path: Path) -> None:
    with gpudiag.profile(tmp_path, **QUICK) as prof:
        for _ in range(14):
            for step in prof.steps(range(100)):
                work()
                if step == 1:
                    break
    assert run_record(tmp_path).status == "complete"


@pytest.mark.parametrize(
    ("length", "error", "kept"),
    [
        (0, "before warm-up was over", None),
        (2, "before warm-up was over", None),
        (6, "after 3 timed steps", 3),
        (11, "after 1 of 3 profiled steps", 5),
    ],
)
def test_a_loop_that_is_too_short_keeps_what_it_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, length: int, error: str, kept: int | None
) -> None:
    with (
        caplog.at_level(logging.WARNING, "gpudiag"),
        gpudiag.profile(tmp_path, **QUICK) as prof,
    ):
        for _ in prof.steps(iter(range(length))):
            work()
    run = run_record(tmp_path)
    assert run.status == "failed"
    assert run.error is not None
    assert error in run.error
    assert error in caplog.text
    unprofiled = run.ranks[0].unprofiled
    assert (None if unprofiled is None else len(unprofiled.step_ms)) == kept


def test_a_trace_cut_short_is_kept_whole(tmp_path: Path) -> None:
    with gpudiag.profile(tmp_path, warmup=1, steps=1, active=9) as prof:
        for _ in prof.steps(range(1 + 1 + 2 + 4)):
            work()
    (rank,) = run_record(tmp_path).ranks
    assert rank.trace is not None
    assert rank.profiled is not None
    assert len(rank.profiled.step_ms) == 4
    assert "gpudiag.step#7" in names_in_trace(tmp_path)


@pytest.mark.parametrize(("error", "status"), [(ValueError("mine"), "failed"), (KeyboardInterrupt(), "interrupted")])
def test_an_exception_leaves_the_block_and_the_record_says_so(
    tmp_path: Path, error: BaseException, status: str
) -> None:
    def train() -> None:
        with gpudiag.profile(tmp_path, **QUICK) as prof:
            for step in prof.steps(range(100)):
                work()
                if step == 6:
                    raise error

    with pytest.raises(type(error)):
        train()
    run = run_record(tmp_path)
    assert run.status == status
    assert type(error).__name__ in str(run.error)
    assert run.ranks[0].unprofiled is not None


def test_while_it_runs_the_record_says_unfinished(tmp_path: Path) -> None:
    with gpudiag.profile(tmp_path, **QUICK) as prof:
        assert (run_record(tmp_path).status, run_record(tmp_path).error) == ("failed", "the run did not finish")
        for _ in prof.steps(range(20)):
            work()


def test_a_block_without_steps_is_no_measurement(tmp_path: Path) -> None:
    with gpudiag.profile(tmp_path):
        pass
    assert "without a step" in str(run_record(tmp_path).error)


def test_what_an_earlier_run_left_is_replaced(tmp_path: Path) -> None:
    for stale in ("ranks/rank0.json", "ranks/rank5.json", "traces/rank5.pt.trace.json.gz", "analysis.json"):
        path = tmp_path / stale
        path.parent.mkdir(exist_ok=True)
        path.write_text("stale")
    (tmp_path / "mine.txt").write_text("kept")
    with gpudiag.profile(tmp_path, **QUICK) as prof:
        for _ in prof.steps(range(20)):
            work()
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"mine.txt", "run.json", "ranks/rank0.json", "traces/rank0.pt.trace.json.gz"}


def test_training_goes_on_when_measuring_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen = 0
    with (
        caplog.at_level(logging.WARNING, "gpudiag"),
        torch_profile(activities=[ProfilerActivity.CPU]),
        gpudiag.profile(tmp_path, **QUICK) as prof,
    ):
        for _ in prof.steps(range(50)):
            work()
            seen += 1
    assert seen == 50
    run = run_record(tmp_path)
    assert run.status == "failed"
    assert run.ranks[0].unprofiled is not None
    assert "gpudiag stops measuring" in caplog.text


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"warmup": -1}, {"active": 2}])
def test_numbers_out_of_range_are_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        gpudiag.profile(tmp_path, **wrong)  # type: ignore[arg-type]  # the test is about values


def test_a_run_directory_is_needed() -> None:
    with pytest.raises(UsageError, match="no run directory"):
        gpudiag.profile()


def test_records_are_what_the_schema_says(tmp_path: Path) -> None:
    with gpudiag.profile(tmp_path, **QUICK) as prof:
        for _ in prof.steps(range(20)):
            work()
    plain = msgspec.json.decode((tmp_path / "run.json").read_bytes())
    assert plain["schema"] == "gpudiag/run/1"
    assert plain["ranks"][0]["schema"] == "gpudiag/rank/1"
