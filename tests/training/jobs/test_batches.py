"""Test that batches from every source are complete, and that their servers end."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest
import torch

from gpudiag.errors import UsageError, WorkerFailedError
from gpudiag.model.job import DATA_SOURCES, TRAINED_MODELS, DataSource, TrainedModel
from gpudiag.training.jobs.data import batch_client
from gpudiag.training.jobs.data.batch_client import ServedBatches, open_batches
from gpudiag.training.jobs.data.batches import DevicePrefetch, batches
from gpudiag.training.models.pytorch.perceptrons import InputOnly
from gpudiag.training.models.registry import load_workload
from tests.forked import run_forked
from tests.forked_jobs import forked_programs_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.processes

CPU = torch.device("cpu")
WORKLOAD = "resnet20-cifar"


def served(servers: int = 1, batch_size: int = 6, name: str = WORKLOAD) -> ServedBatches:
    return ServedBatches(name, on_gpu=False, batch_size=batch_size, servers=servers, pinned=False, seed=3)


def children() -> set[int]:
    """Return the child processes that have not been waited for."""
    children: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the thread has ended in the meantime
            children |= {int(child) for child in (task / "children").read_text().split()}
    return children


@pytest.fixture
def forks() -> Iterator[None]:
    """Run batch servers as forks of a process that has imported PyTorch."""
    with forked_programs_of(batch_client):
        yield


def test_option_values_equal_literal_types() -> None:
    assert get_args(DataSource) == DATA_SOURCES
    assert get_args(TrainedModel) == TRAINED_MODELS


@pytest.mark.parametrize(
    ("source", "workers"), [("device", 0), ("host", 0), ("loader", 0), ("loader", 1), ("zmq", 0), ("zmq", 2)]
)
def test_every_batch_is_full_if_batch_size_does_not_divide_pool(source: DataSource, workers: int) -> None:
    workload = load_workload(WORKLOAD, on_gpu=False)
    assert workload.pool % 6
    if workers == 2:
        run_forked("")  # start the process from which servers are forked; it runs until the end of the tests
    before = children()
    # A single server is a separate process instead of a fork.
    forks = forked_programs_of(batch_client) if workers == 2 else contextlib.nullcontext()
    with forks, open_batches(WORKLOAD, workload, source, batch_size=6, workers=workers, device=CPU, seed=3) as endless:
        for inputs, target in itertools.islice(endless, 120):
            assert (tuple(inputs.shape), inputs.dtype) == ((6, 3, 32, 32), torch.uint8)
            assert (tuple(target.shape), target.dtype) == ((6,), torch.int64)
    if source == "zmq":
        assert children() == before


@pytest.mark.usefixtures("forks")
def test_served_batches_equal_loader_batches_of_server_seed() -> None:
    """With seed 3, the first server makes its samples with seed 3 * 1009 + 0."""
    workload = load_workload(WORKLOAD, on_gpu=False)
    own = batches(workload, "loader", batch_size=6, workers=0, device=CPU, seed=3 * 1009)
    with served() as theirs:
        for (inputs, target), (their_inputs, their_target) in itertools.islice(zip(own, theirs, strict=True), 5):
            assert torch.equal(inputs, their_inputs)
            assert torch.equal(target, their_target)
            their_inputs.zero_()  # the received tensor may be modified


@pytest.mark.usefixtures("forks")
def test_served_volumes_keep_shapes_and_types() -> None:
    with served(batch_size=1, name="unet3d") as theirs:
        inputs, target = next(iter(theirs))
    assert (tuple(inputs.shape), inputs.dtype) == ((1, 1, 4, 54, 54), torch.uint8)
    assert (tuple(target.shape), target.dtype) == ((1, 3, 4, 54, 54), torch.uint8)


@pytest.mark.usefixtures("forks")
def test_dead_server_raises_instead_of_hanging() -> None:
    with served() as theirs:
        endless = iter(theirs)
        next(endless)
        for process in theirs._processes:
            process.send_signal(signal.SIGKILL)
        with pytest.raises(WorkerFailedError, match="exit code -9"):
            deque(endless, maxlen=0)  # consume the batches that were sent before the end
    assert not theirs._processes


TRAINER = """
import time
from gpudiag.training.jobs.data.batch_client import ServedBatches

with ServedBatches("resnet20-cifar", on_gpu=False, batch_size=2, servers=2, pinned=False, seed=0) as served:
    next(iter(served))
    print(*(process.pid for process in served._processes), flush=True)
    time.sleep(600)
"""


@pytest.mark.apart
def test_servers_end_when_trainer_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", TRAINER], stdout=subprocess.PIPE, env=environment) as trainer:
        assert trainer.stdout is not None
        servers = [Path("/proc") / number for number in trainer.stdout.readline().decode().split()]
        assert len(servers) == 2
        assert all(server.exists() for server in servers)
        trainer.kill()
    until = time.monotonic() + 120
    while any(living(server) for server in servers) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(living(server) for server in servers)


def living(process: Path) -> bool:
    try:
        return (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.usefixtures("forks")
def test_server_that_cannot_start_raises(capfd: pytest.CaptureFixture[str]) -> None:
    with served(name="no-such-workload") as theirs, pytest.raises(WorkerFailedError, match="exit code 1"):
        next(iter(theirs))
    assert "there is no workload 'no-such-workload'" in capfd.readouterr().err


@pytest.mark.usefixtures("forks")
def test_socket_is_private_and_removed() -> None:
    with served() as theirs:
        directory = Path(theirs._directory.name)
        assert directory.stat().st_mode & 0o077 == 0
        assert [path.name for path in directory.iterdir()] == ["batches"]
    assert not directory.exists()


def test_socket_path_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("d" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with pytest.raises(UsageError, match="too long a path"), served():
        pass
    assert not list(long.iterdir())


def uneven() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for count in (4, 4, 3):
        yield torch.zeros(count, 2), torch.zeros(count)


def test_prefetch_keeps_smaller_last_batch() -> None:
    assert [len(inputs) for inputs, _ in DevicePrefetch(uneven(), CPU)] == [4, 4, 3]


@pytest.mark.parametrize("name", ["resnet20-cifar", "gpt", "unet3d", "mlp"])
def test_trivial_model_accepts_input_of_any_workload(name: str) -> None:
    whole = load_workload(name, on_gpu=False)
    workload = InputOnly(whole)
    inputs, target = workload.samples(2, torch.Generator().manual_seed(1))
    assert torch.equal(inputs, whole.samples(2, torch.Generator().manual_seed(1))[0])
    model = workload.model()
    assert sum(p.numel() for p in model.parameters()) == inputs[0].numel() + 1
    optimizer = workload.optimizer(model.parameters())
    before = model.sum.weight.detach().clone()  # type: ignore[union-attr, operator]  # the only layer
    workload.loss(model(workload.prepare(inputs)), target).backward()  # type: ignore[no-untyped-call]  # torch's own
    optimizer.step()
    assert not torch.equal(before, model.sum.weight)  # type: ignore[union-attr, arg-type]  # the only layer
