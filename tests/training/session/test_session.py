"""Test `gpudiag.profile` in a user's loop, in one process."""

from __future__ import annotations

import gzip
import itertools
import json
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile
from torch.utils.data import DataLoader, TensorDataset

import gpudiag
from gpudiag.app.analyze import analyze as gpudiag_analyze
from gpudiag.errors import UsageError
from gpudiag.model.run import RUN_SCHEMA, RunRecord, UnprofiledSteps
from gpudiag.model.run_directory import read_json
from gpudiag.trace.sources import find_sources
from gpudiag.training.frameworks.pytorch.dataloader import REQUEST
from gpudiag.training.frameworks.pytorch.profiler import ProfiledWindow
from gpudiag.training.session.line_log import LineLog
from gpudiag.training.session.measurement import runs_ahead
from gpudiag.training.session.step_counts import WarmupLimits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

QUICK: dict[str, Any] = {"warmup": 3, "steps": 5, "active": 3}


def run_record(run_dir: Path) -> RunRecord:
    return read_json(run_dir / "run.json", RunRecord, RUN_SCHEMA)


def spans_in_trace(run_dir: Path, folder: str = "traces") -> list[dict[str, Any]]:
    path = run_dir / folder / "rank0.pt.trace.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


def names_in_trace(run_dir: Path, folder: str = "traces") -> list[str]:
    return [str(event["name"]) for event in spans_in_trace(run_dir, folder)]


def work() -> None:
    torch.ones(64, 64) @ torch.ones(64, 64)


def test_loop_is_measured_and_continues(tmp_path: Path) -> None:
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
    # The run has 3 warm-up steps, 5 unprofiled steps, 3 steps that measure source lines, and for each of two recordings
    # 2 discarded and 3 recorded steps.
    assert [name for name in names if name.startswith("gpudiag.step")] == [f"gpudiag.step#{n}" for n in (18, 19, 20)]
    assert names.count("gpudiag.input") == 3
    assert sum(name.startswith("ProfilerStep#") for name in names) == 3
    assert sorted(path.name for path in (tmp_path / "run" / "traces").iterdir()) == ["light", "rank0.pt.trace.json.gz"]


def test_kernel_only_trace_has_marks_and_no_operators(tmp_path: Path) -> None:
    with gpudiag.profile(tmp_path, **QUICK) as prof:
        for _ in prof.steps(range(23)):
            with gpudiag.range("forward"):
                work()
    (rank,) = run_record(tmp_path).ranks
    assert rank.light_trace == "traces/light/rank0.pt.trace.json.gz"
    assert rank.light is not None
    assert len(rank.light.step_ms) == 3
    assert rank.notes == {}
    light = spans_in_trace(tmp_path, "traces/light")
    assert {event["cat"] for event in light} <= {"user_annotation", "Trace"}
    names = [str(event["name"]) for event in light]
    assert [name for name in names if name.startswith("gpudiag.step")] == [f"gpudiag.step#{n}" for n in (13, 14, 15)]
    assert names.count("gpudiag.input") == names.count("gpudiag.forward") == 3
    assert "aten::matmul" in names_in_trace(tmp_path)
    # The directory of traces contains only the full trace.
    assert [source.path.parent.name for source in find_sources([tmp_path])] == ["traces"]


def test_unprofiled_steps_record_host_times(tmp_path: Path) -> None:
    def slow_loader() -> Iterator[int]:
        for batch in range(30):
            time.sleep(0.005)
            yield batch

    with gpudiag.profile(tmp_path, **QUICK) as prof:
        for _ in prof.steps(slow_loader()):
            work()
            time.sleep(0.01)
    (rank,) = run_record(tmp_path).ranks
    assert rank.timed is not None
    assert rank.unprofiled is not None
    assert rank.timed.input_ms is not None
    assert rank.timed.lead_ms is None  # on a CPU no device works in parallel with the thread
    assert min(rank.timed.input_ms) >= 5
    assert min(rank.timed.host_ms) >= 10
    for step, fetched, queued in zip(rank.unprofiled.step_ms, rank.timed.input_ms, rank.timed.host_ms, strict=True):
        assert fetched + queued <= step
    (timed,) = gpudiag_analyze([tmp_path]).timed or ()
    assert (timed.rank, timed.steps, timed.lead_ms) == (0, 5, None)
    assert timed.step_ms == rank.unprofiled.mean_ms
    assert timed.input_ms == pytest.approx(sum(rank.timed.input_ms) / 5)
    assert "lead_ms" in timed.reasons


def test_host_times_match_steps_across_epochs(tmp_path: Path) -> None:
    with gpudiag.profile(tmp_path, warmup=1, steps=6, active=3) as prof:
        for _ in range(10):
            for step in prof.steps(range(4)):
                time.sleep(0.003 * (1 + step))
                if step == 2:
                    break  # the interrupted step does not count
    (rank,) = run_record(tmp_path).ranks
    assert rank.timed is not None
    # The only warm-up step is the first step of the first epoch. The unprofiled steps are the second step of that epoch
    # and the first two steps of each later epoch.
    assert [host >= 6 for host in rank.timed.host_ms][:1] == [True]
    assert all(host >= 3 for host in rank.timed.host_ms)
    assert len(rank.timed.host_ms) == 6


def test_loop_can_end_steps_explicitly(tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(torch.ones(200, 4)), batch_size=2)
    went_on = []
    with gpudiag.profile(tmp_path, **QUICK, stop=True) as prof:
        for number, _ in enumerate(loader):
            time.sleep(0.002)
            if number == 3:  # validation follows the third warm-up step
                prof.pause()
                time.sleep(0.5)
            went_on.append(prof.step())
            if not went_on[-1]:
                break
    # The first call of `step` begins a step, and the call after the pause begins another step, because the pause ended
    # the third step.
    assert went_on == [True] * (3 + 1 + 5 + 3 + 2 * (2 + 3)) + [False]
    (rank,) = run_record(tmp_path).ranks
    assert rank.unprofiled is not None
    assert max(rank.unprofiled.step_ms) < 500
    assert rank.timed is not None
    assert rank.timed.input_ms is not None
    assert all(0 < fetched < step for fetched, step in zip(rank.timed.input_ms, rank.unprofiled.step_ms, strict=True))
    assert min(rank.timed.host_ms) >= 2
    names = names_in_trace(tmp_path)
    assert names.count("gpudiag.input") >= 3
    assert sum(name.startswith("gpudiag.step#") for name in names) == 3
    assert next(iter(loader)) is not None
    assert "marked" not in type(iter(loader)).__next__.__qualname__, "the loader is still instrumented"


@pytest.mark.apart
def test_input_time_is_unknown_without_input_range(tmp_path: Path) -> None:
    for marked in (False, True):
        with gpudiag.profile(tmp_path, **QUICK) as prof:
            for _ in range(23):
                with gpudiag.range("input" if marked else "other"), gpudiag.range("input" if marked else "another"):
                    time.sleep(0.002)
                work()
                prof.step()
        (timed,) = gpudiag_analyze([tmp_path]).timed or ()
        assert (timed.input_ms is not None) is marked
        assert timed.input_ms is None or 2 <= timed.input_ms < timed.step_ms


def test_session_prints_run_directory_and_next_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with gpudiag.profile(tmp_path / "my run", **QUICK) as prof:
        for _ in prof.steps(range(23)):
            work()
    said = capsys.readouterr().err.splitlines()
    assert "gpudiag: timed 5 steps of " in said[-2]
    assert said[-1] == f"  next: gpudiag analyze '{tmp_path}/my run'"


def test_full_trace_remains_when_kernel_only_recording_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real: Any = torch.autograd.profiler._enable_profiler  # type: ignore[attr-defined]

    def refuses_scopes(config: Any, activities: Any, scopes: Any = None) -> None:
        if scopes:
            raise TypeError("no scopes here")
        real(config, activities)

    refuses_scopes.__doc__ = real.__doc__
    monkeypatch.setattr(torch.autograd.profiler, "_enable_profiler", refuses_scopes)
    with caplog.at_level(logging.WARNING, "gpudiag"), gpudiag.profile(tmp_path, **QUICK) as prof:
        for _ in prof.steps(range(23)):
            work()
    run = run_record(tmp_path)
    (rank,) = run.ranks
    assert (run.status, rank.light, rank.light_trace) == ("complete", None, None)
    assert "no scopes here" in rank.notes["no-light-recording"]
    assert "no scopes here" in caplog.text
    assert not (tmp_path / "traces" / "light" / "rank0.pt.trace.json.gz").exists()
    assert rank.profiled is not None
    # The full trace covers the planned steps, because other ranks would have recorded these steps.
    assert "gpudiag.step#18" in names_in_trace(tmp_path)
    analysis = gpudiag_analyze([tmp_path])
    assert "no-light-recording" in {warning.code for warning in analysis.validity}
    assert analysis.recording is not None
    assert analysis.recording.light_ms is None


def test_torch_without_scopes_refuses_kernel_only_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.autograd.profiler, "_enable_profiler", lambda _config, _activities: None)
    with pytest.raises(RuntimeError, match="without operators"):
        ProfiledWindow(tmp_path / "trace.json.gz", active=3, cuda=False, kernel_only=True)


def test_run_that_ends_between_recordings_keeps_kernel_only_trace(tmp_path: Path) -> None:
    with gpudiag.profile(tmp_path, **QUICK) as prof:
        for _ in prof.steps(iter(range(3 + 5 + 3 + 2 + 3 + 1))):
            work()
    run = run_record(tmp_path)
    (rank,) = run.ranks
    assert "after 0 of 3 profiled steps;" in str(run.error)
    assert (rank.trace, rank.profiled) == (None, None)
    assert rank.light is not None
    assert rank.light_trace is not None
    assert [source.path for source in find_sources([tmp_path])] == [tmp_path / rank.light_trace]


def test_warm_up_is_detected(tmp_path: Path) -> None:
    with gpudiag.profile(tmp_path, steps=5, stop=True) as prof:
        for step in prof.steps(itertools.count()):
            time.sleep(0.2 if step == 0 else 0.02)
    warmup = run_record(tmp_path).ranks[0].warmup
    assert warmup is not None
    assert warmup.automatic
    assert warmup.settled or warmup.seconds >= WarmupLimits().seconds
    assert warmup.steps >= 3 + 6
    assert warmup.seconds > 0


def test_loop_stops_when_everything_is_measured(tmp_path: Path) -> None:
    steps = 0
    with gpudiag.profile(tmp_path, **QUICK, stop=True) as prof:
        for _ in prof.steps(itertools.count()):
            steps += 1
        assert list(prof.steps(range(5))) == []
    assert steps == 3 + 5 + 3 + 2 * (2 + 3)


def test_time_between_epochs_belongs_to_no_step(tmp_path: Path) -> None:
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
    # If the time between epochs counted, one step in four would contain it. Other programs may disturb one step in
    # twenty.
    assert sum(ms >= 100 for ms in rank.unprofiled.step_ms) < 4
    marks = [name for name in names_in_trace(tmp_path) if name.startswith("gpudiag.step")]
    assert marks == sorted(set(marks))


def test_measurement_continues_in_next_loop_after_break(tmp_path: Path) -> None:
    with gpudiag.profile(tmp_path, **QUICK) as prof:
        for _ in range(22):
            for step in prof.steps(range(100)):
                work()
                if step == 1:
                    break
    assert run_record(tmp_path).status == "complete"


@pytest.mark.parametrize(
    ("length", "error", "kept"),
    [
        (0, "before warm-up was over: nothing was timed; 21 more steps would be enough; a measurement needs", None),
        (2, "before warm-up was over: nothing was timed; 19 more steps would be enough", None),
        (6, "after 3 unprofiled steps: no step was profiled; 15 more steps", 3),
        (9, "while the lines of the source were timed: no step was profiled; 12 more steps", 5),
        (
            14,
            (
                "after 1 of 3 profiled steps of the kernel-only recording; 7 more steps would be enough; a measurement "
                "needs"
            ),
            5,
        ),
        (19, "after 1 of 3 profiled steps; 2 more steps would be enough, or gpudiag.profile(…, warmup=2, steps=4,", 5),
    ],
)
def test_short_loop_keeps_its_measurements(
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


def test_missing_steps_include_the_maximum_number_of_steps_that_time_lines(tmp_path: Path) -> None:
    # With fewer than two warm-up steps the step time is unknown, and then 6 steps measure source lines.
    for warmup in (0, 1, 3):
        with gpudiag.profile(tmp_path, warmup=warmup, steps=100, active=3) as prof:
            for _ in prof.steps(range(1)):
                work()
        missing = warmup + 100 + (30 if warmup > 1 else 6) + 2 * (2 + 3) - 1
        assert f"; {missing} more steps would be enough" in str(run_record(tmp_path).error)
        with gpudiag.profile(tmp_path, warmup=warmup, steps=100, active=3) as prof:
            for _ in prof.steps(range(1 + missing)):
                work()
        assert run_record(tmp_path).status == "complete"


def test_trace_cut_short_is_saved(tmp_path: Path) -> None:
    with gpudiag.profile(tmp_path, warmup=1, steps=1, active=9) as prof:
        for _ in prof.steps(range(1 + 1 + 3 + 2 + 9 + 2 + 4)):
            work()
    (rank,) = run_record(tmp_path).ranks
    assert rank.trace is not None
    assert rank.profiled is not None
    assert len(rank.profiled.step_ms) == 4
    assert "gpudiag.step#21" in names_in_trace(tmp_path)


@pytest.mark.parametrize(("error", "status"), [(ValueError("mine"), "failed"), (KeyboardInterrupt(), "interrupted")])
def test_exception_leaves_block_and_is_recorded(tmp_path: Path, error: BaseException, status: str) -> None:
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


def test_record_says_unfinished_during_run(tmp_path: Path) -> None:
    with gpudiag.profile(tmp_path, **QUICK) as prof:
        assert (run_record(tmp_path).status, run_record(tmp_path).error) == ("failed", "the run did not finish")
        for _ in prof.steps(range(23)):
            work()


def test_block_without_steps_is_an_error(tmp_path: Path) -> None:
    with gpudiag.profile(tmp_path):
        pass
    assert "without a step" in str(run_record(tmp_path).error)


def test_files_of_earlier_run_are_replaced(tmp_path: Path) -> None:
    traces = ("traces/rank5.pt.trace.json.gz", "traces/light/rank5.pt.trace.json.gz", "traces/light/rank0.xplane.pb.gz")
    lines = ("lines/rank5.json.gz", "lines/worker7.json.gz", "lines/.worker7.json.gz.new", f"lines/{REQUEST}")
    for stale in ("ranks/rank0.json", "ranks/rank5.json", *traces, *lines, "analysis.json"):
        path = tmp_path / stale
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("stale")
    (tmp_path / "mine.txt").write_text("kept")
    with gpudiag.profile(tmp_path, **QUICK) as prof:
        assert not list((tmp_path / "lines").iterdir())
        for _ in prof.steps(range(23)):
            work()
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    now = {"traces/rank0.pt.trace.json.gz", "traces/light/rank0.pt.trace.json.gz"}
    assert files == {"mine.txt", "run.json", "ranks/rank0.json", "lines/rank0.json.gz", f"lines/{REQUEST}", *now}


def test_training_continues_when_measurement_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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


@pytest.mark.parametrize("length", [10, 9])
def test_program_is_not_traced_after_loop_ended_while_lines_were_timed(tmp_path: Path, length: int) -> None:
    def attached_later(*_: object) -> None:
        return None

    with gpudiag.profile(tmp_path, **QUICK) as prof:
        for step in prof.steps(range(length)):
            assert (step < 8) or sys.gettrace() is not None or sys.version_info >= (3, 12)
    assert sys.gettrace() is None
    with gpudiag.profile(tmp_path, **QUICK) as prof:
        for _ in prof.steps(range(23)):
            work()
        sys.settrace(attached_later)
    tracer = sys.gettrace()
    sys.settrace(None)
    assert tracer is attached_later


def test_failed_measurement_ends_events_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_log: LineLog) -> None:
        raise RuntimeError("lost")

    monkeypatch.setattr(LineLog, "step", fail)
    with gpudiag.profile(tmp_path, **QUICK) as prof:
        for step in prof.steps(range(12)):
            if step >= 9:
                assert sys.gettrace() is None
    assert "lost" in str(run_record(tmp_path).error)


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"warmup": -1}, {"active": 2}])
def test_numbers_out_of_range_are_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        gpudiag.profile(tmp_path, **wrong)  # type: ignore[arg-type]  # the values are wrong on purpose


def test_run_directory_is_required() -> None:
    with pytest.raises(UsageError, match="no run directory"):
        gpudiag.profile()


def test_records_state_their_schema(tmp_path: Path) -> None:
    with gpudiag.profile(tmp_path, **QUICK) as prof:
        for _ in prof.steps(range(23)):
            work()
    plain = msgspec.json.decode((tmp_path / "run.json").read_bytes())
    assert plain["schema"] == "gpudiag/run/1"
    assert plain["ranks"][0]["schema"] == "gpudiag/rank/1"


@pytest.mark.parametrize(
    ("timed", "ahead"),
    [
        (None, False),
        (UnprofiledSteps(host_ms=(4.0,) * 3), False),  # on a CPU nothing is known about a device
        (UnprofiledSteps(host_ms=(4.0,) * 3, lead_ms=(1.9,) * 3), False),
        (UnprofiledSteps(host_ms=(4.0,) * 3, lead_ms=(2.1,) * 3), True),
        # The thread waited because the launch queue was full, so its time in steps with an empty queue counts.
        (UnprofiledSteps(host_ms=(9.0,) * 3, lead_ms=(2.1,) * 3, idle_host_ms=(4.0,) * 3), True),
    ],
)
def test_shapes_are_recorded_where_the_host_has_time(timed: UnprofiledSteps | None, ahead: bool) -> None:
    assert runs_ahead(timed) is ahead


@pytest.mark.parametrize("shapes", [False, True])
def test_window_records_shapes_on_demand(tmp_path: Path, shapes: bool) -> None:
    path = tmp_path / "rank0.pt.trace.json.gz"
    window = ProfiledWindow(path, active=1, cuda=False, shapes=shapes)
    window.start()
    for _ in range(3):
        work()
        window.step()
    window.stop()
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    products = [event for event in events if event.get("name") == "aten::mm"]
    assert products
    assert all(("Input Dims" in event["args"]) is shapes for event in products)
