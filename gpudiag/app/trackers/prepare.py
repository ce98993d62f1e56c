"""Prepare a run for the trackers that a training process logs to (`log_to=` of a callback).

The callback starts this module in a separate process. The module is not a command for users.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpudiag.app.trackers.log import TENSORBOARD_DIRECTORY, log_to_tensorboard, prepare
from gpudiag.errors import GpudiagError


def main() -> None:
    """Analyse the run directory of the command line; with the word `tensorboard`, also write TensorBoard's files."""
    run_dir, *trackers = sys.argv[1:]
    try:
        tracked, analysis = prepare(Path(run_dir))
        if "tensorboard" in trackers:
            where = log_to_tensorboard(tracked, analysis, TENSORBOARD_DIRECTORY / tracked.name)
            sys.stderr.write(f"gpudiag: logged to {where}\n")
    except GpudiagError as error:
        sys.stderr.write(f"gpudiag: the run is not logged: {error}\n  {error.hint}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
