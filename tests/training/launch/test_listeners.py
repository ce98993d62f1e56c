"""Nothing that gpudiag starts on one machine can be reached from another: TensorFlow's servers.

That PyTorch's cannot is seen in jobs that run anyway: `tests/commands/test_profile.py`, `test_scale.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli_process import environment
from tests.listeners import beyond_loopback, listeners_while
from tests.training.jobs.tensorflow_python import tensorflow_python

pytestmark = pytest.mark.xdist_group("processes")


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["parameter-server", "multi-worker"])
def test_tensorflows_servers(strategy: str, tmp_path: Path) -> None:
    options = ("--framework", "tensorflow", "--python", tensorflow_python(), "--strategy", strategy)
    words = ("profile", "mlp", *options, "--devices", "2", "--steps", "3", "--output", str(tmp_path))
    # Its exit code says nothing: TensorFlow's profiler does not always let it end well.
    _, found = listeners_while([sys.executable, "-m", "gpudiag", *words], env=environment())
    assert found
    assert not beyond_loopback(found)
