"""Test that mutants of files cause no traceback, no undocumented exit code, and no excessive time or memory."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from tests.cli_process import gpudiag
from tests.fuzzing.runs import DOCUMENTED, failures


@pytest.mark.processes
@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 60), marks=pytest.mark.apart)], ids=str)
def test_mutants_of_real_files_cause_no_failure(seeds: range) -> None:
    assert list(failures(seeds)) == []


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _bomb(path: Path) -> None:
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (100 << 20), 1))


def _nested(path: Path) -> None:
    path.write_bytes(b'{"schema": "gpudiag/facts/1", "traceEvents": ' + b"[" * 2_000_000)


def _nothing(path: Path) -> None:
    path.touch()


def _zeros(path: Path) -> None:
    path.write_bytes(b'{"traceEvents": [' + b"\0" * (8 << 20))


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


HOSTILE = (_pipe, _loop, _bomb, _nested, _nothing, _zeros, _device)
COMMANDS = (
    ("analyze", "{}"),
    ("topology", "--from", "{}"),
    ("recommend", "--predict-only", "--gradients", "{}"),
    ("recommend", "--predict-only", "--facts", "{}"),
    ("export", "{}", "--to", "csv", "-o", "-"),
)


@pytest.mark.processes
@pytest.mark.parametrize("make", HOSTILE, ids=lambda make: make.__name__.strip("_"))
def test_foreign_files_are_refused_in_two_lines(make: object, tmp_path: Path) -> None:
    assert callable(make)
    make(path := tmp_path / "rank0.json.gz")
    for command in COMMANDS if make in {_pipe, _device} else COMMANDS[:1]:
        done = gpudiag(*(word.replace("{}", str(path)) for word in command))
        assert done.returncode in DOCUMENTED - {0}, (command, done.stderr)
        assert len(done.stderr.splitlines()) == 2, done.stderr
