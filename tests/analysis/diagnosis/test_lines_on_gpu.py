"""Test findings about source lines of a job on a GPU: a recording, and launches by hand."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from gpudiag.analysis.diagnosis.one_line import _mostly_launches
from gpudiag.app.analyze import analyze
from tests.analysis.diagnosis.cases import case_of
from tests.conftest import WHOLE
from tests.timeline_builder import TraceBuilder
from tests.traces.pack import unpack

RECORDED = WHOLE / "lines"
#: Unprofiled step time in ms with the sleep minus that without it, measured in alternation.
COST_MS = 21.2


def test_line_after_the_update_costs_all_of_its_time(tmp_path: Path) -> None:
    """The device begins the first analysed step after the host, which sleeps at the beginning of each step."""
    unpack(RECORDED / "sleeps.npz", tmp_path / "traces")
    shutil.copy(RECORDED / "sleeps-run.json", tmp_path / "run.json")
    (tmp_path / "lines").mkdir()
    shutil.copy(RECORDED / "sleeps-lines.gz", tmp_path / "lines" / "rank0.json.gz")
    first = analyze([tmp_path]).findings[0]
    assert first.code == "host-stall"
    assert first.source is not None
    assert (first.source.function, first.source.line) == ("after_step", 117)
    assert first.recoverable_ms_per_step is not None
    assert abs(first.recoverable_ms_per_step - COST_MS) < 0.1 * COST_MS


def test_launching_and_pausing_lines_are_distinguished() -> None:
    """Each step launches a kernel at 390 µs, and a copy to the device at 900 µs."""
    trace = (
        TraceBuilder()
        .steps(
            4,
            1000,
            lambda step: (
                step.operator(100, 400, "aten::mm")
                .compute(420, 500, launch=(390, 395))
                .copy(950, 960, launch=(900, 905))
            ),
        )
        .build()
    )
    what_if = case_of([trace]).what_if
    assert what_if is not None
    now, device = what_if.corrected, what_if.graph.device
    launches = np.zeros(len(now.busy), np.bool_)
    launches[device.launch[~device.host_copy]] = True
    assert _mostly_launches(what_if, replace(now, busy=np.where(launches, 0.0, now.busy)))
    assert not _mostly_launches(what_if, replace(now, busy=np.where(launches, now.busy, 0.0)))
    assert not _mostly_launches(what_if, replace(now, waiting=np.zeros(len(now.waiting))))
    assert not _mostly_launches(what_if, now)
