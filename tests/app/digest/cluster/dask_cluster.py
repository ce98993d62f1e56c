"""Start a Dask scheduler and workers as processes of this machine, as on the nodes of a cluster."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cli_process import SECONDS, environment

if TYPE_CHECKING:
    from types import TracebackType

ROOT = Path(__file__).parents[4]
PYTHON = ROOT / "build" / "clients-venv" / "bin" / "python"
_QUIET = ("--no-dashboard",)
#: This program waits until the scheduler has a number of workers, or until one worker has work.
_WAIT = """
import sys, time
from distributed import Client
client = Client(sys.argv[1], timeout=60)
kind, wanted = sys.argv[2:]
while True:
    if kind == "workers" and len(client.scheduler_info(n_workers=-1)["workers"]) == int(wanted):
        break
    if kind == "work" and any(info["name"] == wanted and client.processing().get(address)
                              for address, info in client.scheduler_info(n_workers=-1)["workers"].items()):
        break
    time.sleep(0.1)
client.close()
"""


class DaskCluster(AbstractContextManager["DaskCluster"]):
    """A scheduler and workers, which end when the context ends."""

    def __init__(self, directory: Path, *, workers: int) -> None:
        self._directory = directory
        self._count = workers
        self.scheduler: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self.address = ""

    def __enter__(self) -> DaskCluster:
        meeting = self._directory / "scheduler.json"
        self.scheduler = self._start(
            "scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(meeting)
        )
        deadline = time.monotonic() + SECONDS
        while not meeting.is_file() or not meeting.read_text():
            assert self.scheduler.poll() is None, self.logs()
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.05)
        self.address = json.loads(meeting.read_text())["address"]
        for number in range(self._count):
            options = ("--nthreads", "1", "--no-nanny", "--name", f"worker{number}")
            self.workers.append(self._start("worker", "--scheduler-file", meeting, *options))
        self.wait("workers", str(self._count))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (*self.workers, self.scheduler):
            if process is not None:
                process.kill()
                process.wait()

    def wait(self, kind: str, wanted: str) -> None:
        """Wait for `wanted` workers (if `kind` is `workers`), or until the worker `wanted` has work (`work`)."""
        words = [str(PYTHON), "-c", _WAIT, self.address, kind, wanted]
        done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, done.stderr + self.logs()

    def logs(self) -> str:
        """Return the output of all processes."""
        return "\n".join(path.read_text() for path in sorted(self._directory.glob("*.log")))

    def _start(self, *words: str | Path) -> subprocess.Popen[bytes]:
        """Start `dask WORDS...` with its output in a log file."""
        log = self._directory / f"{words[0]}{len(self.workers)}.log"
        with log.open("w") as file:
            return subprocess.Popen(
                [str(PYTHON), "-m", "dask", *words, *_QUIET],
                env=environment(PYTHONPATH=str(ROOT), PYTHONSAFEPATH="1"),
                cwd=self._directory,
                stdout=file,
                stderr=file,
            )


def gpudiag(*words: str) -> subprocess.CompletedProcess[str]:
    """Run one command line in the environment with Dask."""
    process = started(*words)
    out, err = process.communicate(timeout=SECONDS)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def started(*words: str) -> subprocess.Popen[str]:
    """Start one command line in the environment with Dask."""
    return subprocess.Popen(
        [str(PYTHON), "-m", "gpudiag", *words],
        env=environment(PYTHONPATH=str(ROOT)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
