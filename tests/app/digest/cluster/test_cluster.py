"""Test `--scheduler` with a real Dask scheduler and workers, in a separate environment (`make clients`)."""

from __future__ import annotations

import gzip
import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.app.digest.cluster.dask_cluster import PYTHON, ROOT, DaskCluster, gpudiag, started
from tests.cli_process import SECONDS, environment
from tests.cli_process import gpudiag as without_dask

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACES = ROOT / "tests" / "traces"
SMALL = TRACES / "gloo_dataloader"

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]
needs_dask = pytest.mark.skipif(not PYTHON.exists(), reason="make clients has not been run")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with DaskCluster(tmp_path_factory.mktemp("dask"), workers=2) as running:
        yield running


def analysed(*words: str) -> str:
    """Return the JSON of an analysis."""
    done = gpudiag("analyze", "--json", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_dask
def test_analysis_equals_that_without_a_cluster(cluster: DaskCluster, tmp_path: Path) -> None:
    for directory in (SMALL, TRACES / "vgg_p2poff"):
        assert analysed(str(directory), "--scheduler", cluster.address) == analysed(str(directory))
    # The order of files differs from the order of ranks, and the directory has other files than traces.
    for name, rank in (("b", 0), ("a", 1)):
        shutil.copy(SMALL / f"rank{rank}.pt.trace.json.gz", tmp_path / f"{name}.json.gz")
    (tmp_path / "config.json").write_text('{"layers": 3}')
    files = [str(tmp_path / f"{name}.json.gz") for name in ("b", "a")]
    assert analysed(*files, "--scheduler", cluster.address) == analysed(*files)
    assert analysed(*files[::-1], "--scheduler", cluster.address) == analysed(*files[::-1])
    assert analysed(str(tmp_path), "--scheduler", cluster.address) == analysed(str(tmp_path))


@needs_dask
def test_runs_and_processes_with_several_devices_are_read_here(cluster: DaskCluster) -> None:
    for path in (TRACES / "input_only", TRACES / "tensorflow_exchange" / "independent.xplane.pb.gz"):
        assert analysed(str(path), "--scheduler", cluster.address) == analysed(str(path))


@needs_dask
def test_local_scheduler_gives_the_same_analysis(tmp_path: Path) -> None:
    assert analysed(str(SMALL), "--scheduler", "local") == analysed(str(SMALL))


@needs_dask
def test_analysing_process_stays_safe_to_fork(cluster: DaskCluster) -> None:
    """Large jobs are analysed in forks, which Dask's threads would make unsafe."""
    program = """
import sys
from gpudiag.app.analyze import analyze
from gpudiag.app.digests.cluster import on_cluster
from gpudiag.trace.parallel import can_fork
if __name__ == "__main__":
    analyze([sys.argv[1]], engine=on_cluster(sys.argv[2]))
    assert can_fork() and "distributed" not in sys.modules
"""
    done = subprocess.run(
        [str(PYTHON), "-c", program, str(SMALL), cluster.address],
        env=environment(PYTHONPATH=str(ROOT)), capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@needs_dask
def test_digests_are_those_of_one_process(cluster: DaskCluster, tmp_path: Path) -> None:
    for directory, options in (("a", ("--scheduler", cluster.address)), ("b", ())):
        done = gpudiag("digest", str(SMALL), "--output", str(tmp_path / directory), "--json", *options)
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["digests"]) == 2
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


@needs_dask
def test_broken_file_is_one_missing_rank(cluster: DaskCluster, tmp_path: Path) -> None:
    for path in (TRACES / "vgg_p2poff").glob("*.json.gz"):
        shutil.copy(path, tmp_path)
    broken = tmp_path / "rank3.pt.trace.json.gz"
    broken.write_bytes(broken.read_bytes()[:5000])
    analysis = json.loads(analysed(str(tmp_path), "--scheduler", cluster.address))
    assert analysis["ranks_present"] == [0, 1, 2]
    messages = {warning["code"]: warning["message"] for warning in analysis["validity"]}
    assert str(broken) in messages["repaired-input"]
    assert "missing-ranks" in messages


@needs_dask
def test_lost_worker_is_replaced_by_the_other_worker(tmp_path: Path) -> None:
    for number in range(12):
        shutil.copy(SMALL / f"rank{number % 2}.pt.trace.json.gz", tmp_path / f"{number:02}.json.gz")
        _set_rank(tmp_path / f"{number:02}.json.gz", number, 12)
    (tmp_path / "dask").mkdir()
    with DaskCluster(tmp_path / "dask", workers=2) as running:
        running.workers[0].send_signal(signal.SIGSTOP)  # the stopped worker gets files and does not read them
        job = started("analyze", str(tmp_path), "--json", "--scheduler", running.address)
        try:
            running.wait("work", "worker0")
            assert job.poll() is None
            running.workers[0].kill()
            out, err = job.communicate(timeout=SECONDS)
        finally:
            job.kill()
        assert job.returncode == 0, err
        assert out == analysed(str(tmp_path))
        # The remaining worker does all work of another job.
        assert analysed(str(SMALL), "--scheduler", running.address) == analysed(str(SMALL))


def _set_rank(path: Path, rank: int, world_size: int) -> None:
    trace = json.loads(gzip.decompress(path.read_bytes()))
    trace["distributedInfo"] |= {"rank": rank, "world_size": world_size}
    path.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))


@needs_dask
def test_scheduler_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    begun = time.monotonic()
    done = gpudiag("analyze", str(SMALL), "--scheduler", "tcp://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (5, "")
    assert "no Dask scheduler answers at tcp://127.0.0.1:1" in done.stderr
    assert len(done.stderr.splitlines()) == 2, done.stderr
    assert time.monotonic() - begun < SECONDS
    done = gpudiag("analyze", str(SMALL), "--scheduler", "no address")
    assert (done.returncode, done.stdout) == (5, "")
    assert len(done.stderr.splitlines()) == 2, done.stderr
    with DaskCluster(tmp_path, workers=0) as running:
        done = gpudiag("digest", str(SMALL), "--output", str(tmp_path / "d"), "--scheduler", running.address)
        assert (done.returncode, done.stdout) == (5, "")
        assert f"the Dask scheduler at {running.address} has no workers" in done.stderr
        assert len(done.stderr.splitlines()) == 2, done.stderr


def test_missing_dask_is_named() -> None:
    for command in ("analyze", "digest"):
        done = without_dask(command, str(SMALL), "--scheduler", "local")
        assert (done.returncode, done.stdout) == (2, "")
        assert "--scheduler needs Dask, which is not installed" in done.stderr
        assert "gpudiag[cluster]" in done.stderr
