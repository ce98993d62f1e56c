"""Test the live tables of ranks and GPUs."""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING

import pynvml
import pytest
from rich.console import Console

from gpudiag.commands.progress.live_table import LiveTable
from gpudiag.machine.inventory.gpus.now import GpuNow, gpus_now
from gpudiag.training.session.progress import Phase, Progress
from tests.commands.terminals import in_terminal
from tests.machine.fake_nvml import FakeNvml
from tests.machines import machine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Watched:
    """Drive a live table with a clock that the test moves forward."""

    def __init__(self, read_gpus: Callable[[], tuple[GpuNow, ...]] = tuple) -> None:
        self.now_s = 100.0
        self.table = LiveTable(read_gpus, clock=lambda: self.now_s)

    def hear(self, rank: int, phase: Phase, steps: int, of: int | None = None, fetching: float | None = None) -> None:
        self.table.heard(Progress(rank=rank, pid=1, phase=phase, steps=steps, of=of, fetching_ms=fetching))

    def lines(self, width: int = 80) -> list[str]:
        console = Console(file=io.StringIO(), width=width)
        console.print(self.table)
        assert isinstance(console.file, io.StringIO)
        return [re.sub(" +", " ", line).strip() for line in console.file.getvalue().splitlines()]


def test_step_time_is_averaged_over_the_window() -> None:
    watched = Watched()
    watched.hear(1, "timed", 10, 50, fetching=0.25)
    assert watched.lines() == ["rank phase steps step ms fetching ms", "1 timed 10 of 50 — 0.25"]
    for steps in (14, 20):
        watched.now_s += 1.0
        watched.hear(1, "timed", steps, 50)
    assert watched.lines()[1] == "1 timed 20 of 50 200.0 —"
    watched.now_s += 2.5  # now the first two messages are older than the window
    watched.hear(1, "timed", 25, 50)
    assert watched.lines()[1] == "1 timed 25 of 50 500.0 —"


def test_new_phase_resets_the_window() -> None:
    watched = Watched()
    watched.hear(0, "warmup", 4)
    watched.now_s += 1.0
    watched.hear(0, "warmup", 14, fetching=1.5)
    assert watched.lines()[1] == "0 warm-up 14 100.0 1.50"
    watched.hear(0, "timed", 1, 20)
    assert watched.lines()[1] == "0 timed 1 of 20 — —"


def test_ranks_furthest_behind_are_drawn() -> None:
    watched = Watched()
    for rank in range(12):
        watched.hear(rank, "timed" if rank in {3, 11} else "profiled", 1 if rank == 11 else 5, 8)
    lines = watched.lines()
    assert [line.split()[:2] for line in lines[1:9]] == [
        [str(rank), "timed" if rank in {3, 11} else "recorded"] for rank in (0, 1, 2, 3, 4, 5, 6, 11)
    ]
    assert lines[9] == "and 4 more ranks, not further behind"


def test_gpus_are_read_once_a_second() -> None:
    reads = iter(range(10))

    def read() -> tuple[GpuNow, ...]:
        busy = next(reads)
        return (
            GpuNow(index=0, busy_percent=busy, sm_mhz=1980, power_watts=651.6, memory_used_bytes=12_300_000_000),
            GpuNow(index=1, busy_percent=None, sm_mhz=None, power_watts=None, memory_used_bytes=None),
        )

    watched = Watched(read)
    assert watched.lines() == ["GPU busy SM MHz W memory", "0 0 % 1980 652 12.3 GB", "1 — — — —"]
    watched.now_s += 0.9
    assert watched.lines()[1].startswith("0 0 %")
    watched.now_s += 0.1
    assert watched.lines()[1].startswith("0 1 %")


def test_missing_gpu_figures_are_dashes() -> None:
    facts = machine("h200x4")
    fake = FakeNvml(facts, refuse={("nvmlDeviceGetPowerUsage", 1): pynvml.NVML_ERROR_NOT_SUPPORTED})
    with gpus_now(fake) as read:
        first, second, *_ = read()
        assert (first.index, first.busy_percent, first.sm_mhz) == (0, 90, facts.gpus[0].sm_clock.current_mhz)
        assert first.memory_used_bytes == 0
        assert first.power_watts == pytest.approx(facts.gpus[0].power_watts)
        assert second.power_watts is None
        assert second.busy_percent == 91
    assert fake.opened == 0


@pytest.mark.processes
@pytest.mark.xdist_group("processes")
def test_run_in_a_terminal_draws_its_ranks(tmp_path: Path) -> None:
    """The trivial model spends almost all of its time on input."""
    words = (
        "profile",
        "resnet50",
        "--model",
        "trivial",
        "--strategy",
        "independent",
        "--batch-size",
        "4",
        "--prefetch",
    )
    # The run has several seconds of steps, because a table is drawn four times per second.
    short = ("--devices", "1", "--steps", "300", "--warmup", "10", "--no-probe", "--output", str(tmp_path / "run"))
    code, shown = in_terminal(*words, *short, columns=100, CUDA_VISIBLE_DEVICES="")
    assert code == 0, shown
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert re.search(r"rank +phase +steps +step ms +fetching ms", drawn)
    assert re.search(r"0  (warm-up|timed) +\d+ of \d+", drawn)
    assert drawn.rstrip().endswith(f"saved in {tmp_path / 'run'}")
    record = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert record["status"] == "complete"
    assert (record["options"]["model"], record["options"]["prefetch"]) == ("trivial", "true")
    assert record["model"]["parameters"] == 3 * 224 * 224 + 1
    assert record["workload"] == "resnet50 (trivial model)"
