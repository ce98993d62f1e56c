"""Provide fixtures for `gpudiag view`: TensorBoard, a browser, and a running view."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpudiag.errors import FrameworkMissingError
from gpudiag.report.export.tensorboard.server import check_interpreter
from tests.cli_process import environment

if TYPE_CHECKING:
    from collections.abc import Iterator

#: TensorBoard needs half a gigabyte, so it may be installed in a separate environment. `make tensorboard` creates the
#: first path.
PLACES = (Path(__file__).parents[2] / "build" / "xprof-venv" / "bin" / "python", Path(sys.executable))
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
STARTS_WITHIN_S = 150


@cache
def board_python() -> str:
    """Return the path of an interpreter that has TensorBoard with its profile plugin, or skip the test."""
    path = os.environ.get("GPUDIAG_TENSORBOARD_PYTHON")
    for python in [path] if path else [str(place) for place in PLACES if place.exists()]:
        try:
            check_interpreter(python)
        except FrameworkMissingError:
            continue
        return python
    pytest.skip("no interpreter here has TensorBoard with its profile plugin (make tensorboard)")


def browser_path() -> str:
    """Return the path of a Chromium browser, or skip the test."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    return browser


@contextmanager
def viewing(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Yield a running `gpudiag view` and its URL; end it with SIGTERM and check that no files remain."""
    with tempfile.TemporaryDirectory() as temporary:
        log = Path(temporary) / "stderr"
        command = [sys.executable, "-m", "gpudiag", "view", *words, "--no-open", "--python", board_python()]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stderr=output, env=environment(TMPDIR=temporary))
        try:
            yield process, _url(process, log)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        assert process.returncode == 130
        assert [path.name for path in Path(temporary).iterdir()] == ["stderr"], "temporary files were left behind"


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    """Return the URL that `gpudiag view` prints to `log`, as soon as it serves."""
    until = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < until:
        if found := re.search(r"http://\S+?/(?=#)", log.read_text(encoding="utf-8")):
            return found[0]
        if process.poll() is not None:
            break
        time.sleep(0.2)
    pytest.fail(f"gpudiag view did not serve: {log.read_text(encoding='utf-8')}")
