"""Nothing that gpudiag starts on one machine can be reached from another."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli_process import environment
from tests.listeners import beyond_loopback, listeners_while
from tests.training.jobs.tensorflow_python import tensorflow_python

pytestmark = pytest.mark.xdist_group("processes")


def listening(*words: str, to_its_end: bool = True) -> set[str]:
    """The addresses on which this command and all that it starts listen; `to_its_end` where it has to end well."""
    code, found = listeners_while([sys.executable, "-m", "gpudiag", *words], env=environment())
    assert code == 0 or not to_its_end
    return found


def test_a_pytorch_job_of_two_processes(tmp_path: Path) -> None:
    found = listening("profile", "mlp", "--devices", "2", "--steps", "3", "--warmup", "2", "--output", str(tmp_path))
    assert found
    assert not beyond_loopback(found)


def test_a_point_of_a_scaling_benchmark(tmp_path: Path) -> None:
    """Its process serves a store of its own, as those of larger points do."""
    once = ("--starts", "1", "--seconds", "0.2", "--profile", "none", "--measure-only")
    found = listening("scale", "mlp", "--devices", "1", "--strategies", "gloo", *once, "--output", str(tmp_path))
    assert found
    assert not beyond_loopback(found)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["parameter-server", "multi-worker"])
def test_tensorflows_servers(strategy: str, tmp_path: Path) -> None:
    options = ("--framework", "tensorflow", "--python", tensorflow_python(), "--strategy", strategy)
    words = ("profile", "mlp", *options, "--devices", "2", "--steps", "3", "--output", str(tmp_path))
    found = listening(*words, to_its_end=False)  # which TensorFlow's profiler does not always let it
    assert found
    assert not beyond_loopback(found)
