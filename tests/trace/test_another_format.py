"""Test that a reader in one file of a separate package can add an unknown format."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli_process import environment

if TYPE_CHECKING:
    from pathlib import Path


#: Module of the separate package. No reader of gpudiag knows the format's German words. In the order of `WORDS` they
#: mean: step, wait for data, launch, wait for the device, compute, all-reduce.
READER = '''
"""Read `.steps`: the events of one rank, each a line `word begin_us length_us`."""
import numpy as np
import pytest

from gpudiag.errors import NotATraceError
from gpudiag.model.event import (
    HOST, NO_CORRELATION, NO_SIZE, CollectiveCall, EventKind, EventTable, Role, StepMarks, Trace,
)

ENDINGS = (".steps",)
#: word: (kind, role, thread or stream, device)
WORDS = {
    "schritt": (EventKind.ANNOTATION, Role.STEP_MARK, 1, HOST),
    "warten": (EventKind.ANNOTATION, Role.INPUT, 1, HOST),
    "auftrag": (EventKind.RUNTIME, Role.LAUNCH, 1, HOST),
    "abwarten": (EventKind.RUNTIME, Role.SYNCHRONIZATION, 1, HOST),
    "rechnen": (EventKind.KERNEL, Role.COMPUTE, 7, 0),
    "tausch": (EventKind.KERNEL, Role.COMMUNICATION, 20, 0),
}


def recognises(path):
    return path.name.endswith(".steps")


def read(path, shown, limits):
    text = path.read_text()
    if len(text) > limits.max_bytes or not text.startswith("steps 1 rank"):
        raise NotATraceError(f"{shown} is no .steps file")
    head, *lines = text.splitlines()
    rows = sorted((line.split() for line in lines), key=lambda row: (int(row[1]), -int(row[2])))
    what = [WORDS[word] for word, *_ in rows]
    launched = {"auftrag": 0, "work": 0}
    correlation = []
    for (word, *_), (kind, *_) in zip(rows, what):
        key = "auftrag" if word == "auftrag" else "work" if kind == EventKind.KERNEL else None
        launched[key] = launched.get(key, 0) + 1
        correlation.append(launched[key] if key else NO_CORRELATION)
    names = tuple(WORDS)
    count = len(rows)
    begin = np.array([int(row[1]) * 1000 for row in rows], np.int64)
    table = EventTable(
        kind=np.array([kind for kind, *_ in what], np.uint8),
        name=np.array([names.index(word) for word, *_ in rows], np.int32),
        start_ns=begin, end_ns=begin + np.array([int(row[2]) * 1000 for row in rows], np.int64),
        thread=np.array([thread for _, _, thread, _ in what], np.int64),
        device=np.array([device for *_, device in what], np.int16),
        correlation=np.array(correlation, np.int64),
        size_bytes=np.full(count, NO_SIZE, np.int64),
        role=np.array([role for _, role, *_ in what], np.uint8),
        direction=np.zeros(count, np.uint8), host_memory=np.zeros(count, np.uint8), names=names,
    )
    marks = np.flatnonzero(table.role == Role.STEP_MARK)
    return (
        Trace(
            source=shown, framework="pytorch", events=table, origin_ns=10**18, rank=int(head.split()[3]),
            world_size=int(head.split()[5]),
            collectives=tuple(
                CollectiveCall(row=int(row), operation="all_reduce", group="all", sequence=n)
                for n, row in enumerate(np.flatnonzero(table.role == Role.COMMUNICATION))
            ),
            step_marks=(StepMarks(source="schritt", row=marks, number=np.arange(len(marks))),),
        ),
    )
'''

#: Length of a step, and delay of rank 1's data, in µs. A step has a wait for data, a launch, compute, an all-reduce and
#: a wait for the device.
STEP_US, LATE_US = 18_000, 12_000


def recording(rank: int) -> str:
    """Return the text of one rank's trace in the format of the separate package's reader."""
    late = LATE_US if rank == 1 else 0
    lines = [f"steps 1 rank {rank} of 2"]
    for step in range(8):
        zero = step * STEP_US
        lines += [
            f"schritt {zero} {STEP_US}",
            f"warten {zero + 10} {late + 100}",
            f"auftrag {zero + late + 200} 20",
            f"rechnen {zero + late + 300} 4000",
            f"auftrag {zero + late + 230} 20",
            f"abwarten {zero + late + 260} {17_920 - late - 260}",
            f"tausch {zero + late + 4310} {17_900 - late - 4310}",
        ]
    return "\n".join(lines)


@pytest.mark.processes
def test_third_party_reader_is_found_and_its_ranks_are_diagnosed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site"
    about = package / "steps_reader-1.0.dist-info"
    about.mkdir(parents=True)
    (package / "steps_reader.py").write_text(READER, encoding="utf-8")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: steps-reader\nVersion: 1.0\n", encoding="utf-8")
    (about / "entry_points.txt").write_text("[gpudiag.readers]\nsteps = steps_reader\n", encoding="utf-8")
    traces = tmp_path / "traces"
    traces.mkdir()
    for rank in (0, 1):
        (traces / f"rank{rank}.steps").write_text(recording(rank), encoding="utf-8")

    variables = environment()
    variables["PYTHONPATH"] = f"{package}:{variables.get('PYTHONPATH', '')}"
    result = subprocess.run(
        [sys.executable, "-m", "gpudiag", "analyze", traces, "--json"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    analysis = json.loads(result.stdout)
    assert analysis["ranks_present"] == [0, 1]
    assert [(device["rank"], round(device["step_ms"])) for device in analysis["devices"]] == [(0, 18), (1, 18)]
    first = analysis["findings"][0]
    assert (first["code"], first["ranks"], first["cause"]) == ("straggler", [1], "input")
    assert abs(first["recoverable_ms_per_step"] - LATE_US / 1000) < 1
    waits = analysis["waits"]
    assert [(wait["rank"], wait["on_rank"]) for wait in waits] == [(0, 1)]
