"""Test input waits that appear only in unprofiled steps, with saved files and with a real loop on a CPU."""

from __future__ import annotations

import shutil
import statistics
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
import torch

import gpudiag
from gpudiag.app.analyze import analyze, analyze_run
from gpudiag.errors import UnreadableInputError
from gpudiag.model.analysis import ANALYSIS_SCHEMA, Analysis
from gpudiag.model.run import RUN_SCHEMA, RankRecord, RunRecord, UnprofiledSteps
from gpudiag.model.run_directory import ANALYSIS_FILE, RUN_FILE, read_json, write_json
from gpudiag.report.text.run import to_markdown
from gpudiag.training.session.clock import summarize

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACES = Path(__file__).parents[1] / "traces" / "clean"


def record(step_ms: float, input_ms: float) -> RunRecord:
    """Make a record of four ranks with unprofiled steps of `step_ms`, which wait `input_ms` for their batch.

    The host runs ahead by 0.5 ms.
    """
    ranks = tuple(
        RankRecord(
            rank=rank,
            local_rank=rank,
            host="a",
            pid=1,
            device=f"cuda:{rank}",
            device_name="NVIDIA H200",
            unprofiled=summarize([step_ms, step_ms + 0.1] * 15),
            timed=UnprofiledSteps(
                input_ms=(input_ms, input_ms + 0.1) * 15, host_ms=(step_ms - input_ms,) * 30, lead_ms=(0.5,) * 30
            ),
            light=summarize([1.1 * step_ms] * 6),
            profiled=summarize([1.3 * step_ms] * 6),
        )
        for rank in range(4)
    )
    return RunRecord(
        created="2026-01-01T00:00:00Z",
        command=("gpudiag", "profile"),
        workload="resnet50",
        framework="pytorch",
        strategy="nccl",
        world_size=4,
        nodes=1,
        batch_size_per_device=64,
        ranks=ranks,
        status="complete",
    )


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    shutil.copytree(TRACES, tmp_path / "traces")
    return tmp_path


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Limit PyTorch to one thread, because threads that wait for each other on a busy machine make steps unequal."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_unprofiled_input_wait_overrides_shorter_recorded_wait(run_dir: Path) -> None:
    alone = analyze([run_dir])
    assert (alone.timed, alone.recording) == (None, None)
    assert "input-bound" not in {finding.code for finding in alone.findings}
    step_ms = 1.1 * alone.steps.mean_ms
    write_json(run_dir / RUN_FILE, record(step_ms, 0.1 * step_ms + 0.5))
    made = analyze_run(run_dir)
    finding = next(finding for finding in made.findings if finding.code == "input-bound")
    assert finding.recoverable_ms_per_step == pytest.approx(0.1 * step_ms, rel=0.02)
    assert finding.ranks == (0, 1, 2, 3)
    saved = read_json(run_dir / ANALYSIS_FILE, Analysis, ANALYSIS_SCHEMA)
    assert saved.timed is not None
    assert [rank.rank for rank in saved.timed] == [0, 1, 2, 3]
    assert saved.timed[0].lead_ms == pytest.approx(0.5)
    assert saved.recording is not None
    assert saved.recording.light_ms == pytest.approx(1.1 * step_ms)
    said = to_markdown(saved)
    assert "ms while recording only GPU activity" in said
    assert "The CPU keeps only 0.50 ms of work queued for the GPU" in said


@pytest.mark.parametrize("wrong", [-1.0, 1e300])
def test_invalid_times_are_refused(run_dir: Path, wrong: float) -> None:
    made = msgspec.to_builtins(record(20.0, 1.0))
    made["ranks"][0]["timed"]["lead_ms"] = [wrong]
    (run_dir / RUN_FILE).write_bytes(msgspec.json.encode(made))
    with pytest.raises(UnreadableInputError, match="lead_ms"):
        analyze([run_dir])


@pytest.mark.measured
@pytest.mark.usefixtures("one_thread")
def test_slow_loader_of_unprofiled_steps_is_found_in_a_real_loop(tmp_path: Path) -> None:
    """The loader is slow only in unprofiled steps, because profiling slows the job enough for the loader to keep up."""
    weights = torch.zeros(256, 256, requires_grad=True)
    worked_s = 0.01

    def loader() -> Iterator[int]:
        for batch in count():
            if not torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
                time.sleep(worked_s / 2)
            yield batch

    with gpudiag.profile(tmp_path, warmup=3, steps=12, active=5, stop=True) as prof:
        for _ in prof.steps(loader()):
            began_s = time.perf_counter()
            loss = torch.ones(256, 256)
            for _layer in range(20):
                loss = loss @ weights
            loss.sum().backward()  # type: ignore[no-untyped-call]
            worked_s = time.perf_counter() - began_s
    (rank,) = read_json(tmp_path / RUN_FILE, RunRecord, RUN_SCHEMA).ranks
    assert rank.timed is not None
    assert rank.timed.input_ms is not None
    analysis = analyze([tmp_path])
    finding = next(finding for finding in analysis.findings if finding.code == "input-bound")
    assert finding.evidence["timed_steps"] == 12
    assert finding.recoverable_ms_per_step == pytest.approx(statistics.fmean(rank.timed.input_ms))
    assert analysis.timed is not None
    assert analysis.recording is not None
    assert analysis.recording.light_ms is not None
