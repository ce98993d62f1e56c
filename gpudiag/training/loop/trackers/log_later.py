"""Log the run of a trainer's callback to trackers while the training continues."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpudiag.errors import UsageError, there_are
from gpudiag.model.run_directory import read_json
from gpudiag.training.loop.trackers.mlflow_run import log_to_mlflow, open_mlflow_run
from gpudiag.training.loop.trackers.tracked_run import TRACKED_FILE, TRACKED_SCHEMA, TRACKERS, TrackedRun
from gpudiag.training.loop.trackers.wandb_run import log_to_wandb, open_wandb_run
from gpudiag.training.own_program import lower_priority, own_program

#: Maximum number of seconds that the end of the training waits for the analysis.
_ANALYSIS_S = 120.0


class LogLater:
    """Analyse a run in a process of low priority. Then log the run to the trackers' runs that this process has open.

    The methods print failures and raise no exceptions, because the training must continue. If a tracker has no open
    run, a new run is created. The process of low priority writes TensorBoard's files.

    Args:
        trackers: names of trackers.

    Raises:
        UsageError: there is no such tracker.
    """

    def __init__(self, trackers: str | Sequence[str]) -> None:
        self._trackers = (trackers,) if isinstance(trackers, str) else tuple(trackers)
        for name in self._trackers:
            if name not in TRACKERS:
                raise UsageError(f"log_to knows no '{name}'", there_are(name, TRACKERS))
        self._wandb_run: Any = None
        #: MLflow's open run: (client, id), where client None is the default client; None if there is no open run.
        self._mlflow_run: tuple[Any, str] | None = None
        self._run_dir = Path()
        self._process: subprocess.Popen[bytes] | None = None

    def remember(self, *, mlflow: tuple[Any, str] | None = None) -> None:
        """Store the open runs, because the trainer may close them before the run is logged.

        Args:
            mlflow: client and id of the trainer's run, if the trainer opened the run with its own client; else None.
        """
        with contextlib.suppress(Exception):
            self._wandb_run = self._wandb_run or open_wandb_run()
            run_id = open_mlflow_run()
            self._mlflow_run = mlflow or self._mlflow_run or (None if run_id is None else (None, run_id))

    def begin(self, run_dir: Path) -> None:
        """Start the analysis of the run in `run_dir`."""
        self.remember()
        self._run_dir = run_dir.absolute()
        tensorboard = "tensorboard" if "tensorboard" in self._trackers else ""
        command = own_program("gpudiag.app.trackers.prepare", str(self._run_dir), tensorboard)
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        except OSError as error:
            _say(f"the run is not logged: {error}")
            return
        lower_priority(self._process.pid)

    def poll(self) -> None:
        """Log the run if its analysis is complete. The method never waits for the analysis."""
        if self._process is None or self._process.poll() is None:
            return
        process, self._process = self._process, None
        if process.returncode == 0:
            self._log()

    def finish(self) -> None:
        """Wait for the analysis at the end of the training, at most two minutes, and log the run."""
        if self._process is None:
            return
        try:
            self._process.wait(_ANALYSIS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _say(f"the run is not logged: its analysis takes longer than {_ANALYSIS_S:.0f} s")
        self.poll()

    def _log(self) -> None:
        """Log the analysed run to W&B and MLflow, as far as requested. Print the tracker's run, or the error."""
        for name in self._trackers:
            if name == "tensorboard":
                continue
            try:
                tracked = read_json(self._run_dir / TRACKED_FILE, TrackedRun, TRACKED_SCHEMA)
                if name == "wandb":
                    where = log_to_wandb(tracked, run=self._wandb_run)
                else:
                    client, run_id = self._mlflow_run or (None, None)
                    where = log_to_mlflow(tracked, client=client, run_id=run_id)
                _say(f"logged to {where}")
            except Exception as error:  # noqa: BLE001  # the training must go on
                _say(f"the run is not logged to {name}: {type(error).__name__}: {error}")


def _say(line: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"gpudiag: {line}\n")
        sys.stderr.flush()
