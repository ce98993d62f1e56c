"""Test that a second user of the host can neither read nor change the files through which ranks connect."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli_process import SECONDS, environment
from tests.other_user import as_another_user, needs_root

if TYPE_CHECKING:
    from collections.abc import Iterator

#: These tests are `apart`, because `tests/commands/test_profile.py` also tests what a second user reaches.
pytestmark = [pytest.mark.apart, pytest.mark.processes, pytest.mark.xdist_group("processes")]

_PROGRAM = """
import os, time
from pathlib import Path

import torch
import torch.distributed as dist

import gpudiag


def train():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    Path(f"store{rank}").write_text(f"{type(store).__name__} {os.environ['GPUDIAG_STORE']}")
    ones = torch.ones(8)
    with gpudiag.profile(warmup=1, steps=2) as prof:
        for _ in prof.steps(range(23)):
            dist.all_reduce(ones)
    while not os.path.exists("go"):
        time.sleep(0.02)
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """Yield the directory of a run of two ranks that are connected and wait for the file `go`."""
    directory = tmp_path_factory.mktemp("held")
    (directory / "mine.py").write_text(_PROGRAM)
    words = ["-P", "-m", "gpudiag", "profile", "mine:train", "--devices", "2", "--output", "out"]
    # Other users can enter the parent directory, so only the mode of the run directory stops them.
    run = subprocess.Popen(
        [sys.executable, *words],
        cwd=directory,
        env=environment(TMPDIR="/tmp"),  # noqa: S108
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    until = time.monotonic() + SECONDS
    while not all((directory / f"store{rank}").exists() for rank in (0, 1)):
        assert run.poll() is None, run.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.05)
    yield directory, run
    (directory / "go").touch()
    run.communicate(timeout=SECONDS)


def test_ranks_meet_through_files_of_a_private_directory(held: tuple[Path, subprocess.Popen[str]]) -> None:
    directory, _ = held
    kind, store = (directory / "store0").read_text().split()
    assert kind == "FileStore"
    private = Path(store).parent
    assert private.stat().st_mode & 0o777 == 0o700
    assert private.stat().st_uid == os.getuid()


@needs_root
def test_other_user_cannot_read_or_write_private_directory(held: tuple[Path, subprocess.Popen[str]]) -> None:
    directory, _ = held
    store = Path((directory / "store0").read_text().split()[1])
    files = [path for path in store.rglob("*") if path.is_file()]
    assert files
    assert as_another_user(lambda: Path("/").exists()) == "True"  # attempts as another user succeed on accessible files
    assert as_another_user(lambda: list(store.parent.iterdir())) == "PermissionError"
    for path in (*files, store.parent / "progress"):
        assert as_another_user(path.read_bytes) == "PermissionError"
        assert as_another_user(partial(path.write_bytes, b"")) == "PermissionError"
    assert as_another_user((store / "new").touch) == "PermissionError"


@needs_root
def test_command_lines_contain_no_secret(held: tuple[Path, subprocess.Popen[str]]) -> None:
    """Other users can see only the command lines of a process."""
    directory, _ = held
    private = Path((directory / "store0").read_text().split()[1]).parent
    for rank in (0, 1):
        processes = [path for path in Path("/proc").iterdir() if path.name.isdecimal()]
        of_this_run = [p for p in processes if str(private / "store").encode() in _environment(p) and p.is_dir()]
        assert of_this_run, rank
        assert as_another_user((of_this_run[0] / "environ").read_bytes) == "PermissionError"


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""
