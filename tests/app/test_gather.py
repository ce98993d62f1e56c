"""Test jobs on two machines: two launches, in separate network namespaces if those are allowed."""

from __future__ import annotations

import gzip
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pytest

import gpudiag
from gpudiag.app.gather import gather
from gpudiag.errors import UnreadableInputError
from gpudiag.model.run import RANK_SCHEMA, RUN_SCHEMA, RankRecord, RunRecord
from gpudiag.model.run_directory import read_json, write_json
from gpudiag.model.source_lines.log import LINES_SCHEMA, find_line_logs, read_log_origins
from gpudiag.report.header import header_lines
from tests.cli_process import SECONDS, environment
from tests.cli_process import gpudiag as command
from tests.forked import Forked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpudiag.model.analysis import Analysis

ROOT = Path(__file__).parents[2]

TRAIN = """
import os, socket, sys
socket.gethostname = lambda: os.environ["NODE"]
import torch
import gpudiag

torch.distributed.init_process_group("gloo")
model = torch.nn.Linear(256, 256)  # without DDP and optimizers, which import PyTorch's compiler
with gpudiag.profile(sys.argv[1], warmup=2, steps=5, active=4, stop=True, model=model, batch_size=8) as prof:
    for _ in prof.steps(range(40)):
        model(torch.ones(8, 256)).square().mean().backward()
        torch.distributed.all_reduce(model.weight.grad)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


class Network(NamedTuple):
    """The command prefix of each node, the address of the rendezvous, and the network interface of each node."""

    prefixes: tuple[tuple[str, ...], ...]
    address: str
    interfaces: tuple[str, str]


LOOPBACK = Network(((), ()), "127.0.0.1", ("lo", "lo"))


@pytest.fixture
def network() -> Iterator[Network]:
    """Yield two linked network namespaces, or the loopback if none can be made."""
    names = (f"gpudiag{os.getpid()}a", f"gpudiag{os.getpid()}b")

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, timeout=SECONDS)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "node0", "netns", names[0], "type", "veth", "peer", "name", "node1", "netns", names[1])
        for node, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.77.0.{node + 1}/24", "dev", f"node{node}")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", f"node{node}", "up")
        prefixes = tuple(("ip", "netns", "exec", name) for name in names)
        network = Network(prefixes, "10.77.0.1", ("node0", "node1"))
    except (OSError, subprocess.CalledProcessError):
        network = LOOPBACK
    try:
        yield network
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=SECONDS, check=False)


def train(run_dirs: tuple[Path, Path], network: Network, *, torchrun: bool) -> None:
    """Run one process on each of two nodes with separate host names, by torchrun or like a script under Slurm."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = str(listening.getsockname()[1])
    started: list[subprocess.Popen[bytes] | Forked] = []
    logs = []
    for node, (run_dir, prefix) in enumerate(zip(run_dirs, network.prefixes, strict=True)):
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        log = run_dir.parent / f"node{node}.log"
        values = environment(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", NODE=f"node{node}")
        values["GLOO_SOCKET_IFNAME"] = network.interfaces[node]
        if torchrun:
            script = run_dir.parent / "train.py"
            script.write_text(TRAIN, encoding="utf-8")
            meeting = ("--master-addr", network.address, "--master-port", port)
            nodes = ("--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1")
            command = (sys.executable, "-m", "torch.distributed.run", *nodes, *meeting, str(script), str(run_dir))
            with log.open("w") as file:
                started.append(subprocess.Popen([*prefix, *command], env=values, stdout=file, stderr=file))
        else:
            place = {"RANK": str(node), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            place |= {"MASTER_ADDR": network.address, "MASTER_PORT": port}
            started.append(Forked(TRAIN, str(run_dir), out=log, err=log, values=values | place))
        logs.append(log)
    try:
        codes = [process.wait(SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
    assert codes == [0, 0], [log.read_text() for log in logs]


def analysis_without_paths(run_dir: Path) -> Analysis:
    """Return the analysis of a run directory without the paths and names of files in it."""
    analysis = gpudiag.analyze(run_dir)
    return msgspec.structs.replace(analysis, source=msgspec.structs.replace(analysis.source, paths=()))


@pytest.mark.apart
@pytest.mark.xdist_group("processes")
def test_gather_two_machines_under_torchrun(tmp_path: Path, network: Network) -> None:
    gather_separate_directories(tmp_path, network, torchrun=True)


@pytest.mark.xdist_group("processes")
def test_gather_two_machines_with_separate_directories(tmp_path: Path) -> None:
    gather_separate_directories(tmp_path, LOOPBACK, torchrun=False)


def gather_separate_directories(tmp_path: Path, network: Network, *, torchrun: bool) -> None:
    """Train in two directories, and gather the second one's records into the first."""
    first, second = tmp_path / "node0" / "run", tmp_path / "node1" / "run"
    # An earlier run with more ranks left these records, which are not part of the gathered run.
    stale = RankRecord(rank=1, local_rank=1, host="node0", pid=1, device="cpu", device_name="", run_id="earlier")
    (first / "ranks").mkdir(parents=True)
    write_json(first / "ranks" / "rank1.json", stale)
    train((first, second), network, torchrun=torchrun)
    alone = read_json(first / "run.json", RunRecord, RUN_SCHEMA)
    assert (alone.nodes, alone.world_size, [rank.rank for rank in alone.ranks]) == (2, 2, [0])
    assert "missing-ranks" in {warning.code for warning in gpudiag.analyze(first).validity}
    (first / "analysis.json").write_text("{}", encoding="utf-8")

    done = command("gather", str(first), str(second))
    assert (done.returncode, done.stdout) == (0, "")
    assert f"2 of 2 ranks are in {first}; next: gpudiag analyze {first}" in done.stderr
    assert not (first / "analysis.json").exists(), "the saved analysis has one rank only"
    run = read_json(first / "run.json", RunRecord, RUN_SCHEMA)
    assert [(rank.rank, rank.host) for rank in run.ranks] == [(0, "node0"), (1, "node1")]
    assert run.status == "complete"
    assert gather(first, [second]) == run, "gathering again changes the record"
    analysis = gpudiag.analyze(first)
    assert analysis.ranks_present == (0, 1)
    assert analysis.source.hosts == ("node0", "node1")
    assert not {"missing-ranks", "mixed-runs"} & {warning.code for warning in analysis.validity}
    (clock,) = analysis.clocks
    assert (clock.rank, clock.matched > 0) == (1, True)
    assert header_lines(analysis)[-1].startswith("The clocks of 2 hosts agree to ")

    # One node sends only its digests.
    traced = analysis_without_paths(first)
    assert command("digest", str(second)).returncode == 0
    shutil.rmtree(second / "traces")
    for name in ("traces/rank1.pt.trace.json.gz", "traces/light/rank1.pt.trace.json.gz", "ranks/rank1.json"):
        (first / name).unlink(missing_ok=True)
    write_json(first / "run.json", alone)
    assert command("gather", str(first), str(second)).returncode == 0
    assert [path.name for path in (first / "digests").iterdir()] == ["rank1.gpudiag-digest"]
    assert analysis_without_paths(first) == traced
    # One node has traces and digests.
    shutil.copytree(first / "traces", second / "traces")
    shutil.rmtree(first / "digests")
    write_json(first / "run.json", alone)
    assert command("gather", str(first), str(second), "--digests").returncode == 0
    assert [path.name for path in (first / "digests").iterdir()] == ["rank1.gpudiag-digest"]
    assert not list((first / "traces").glob("rank1*"))
    assert analysis_without_paths(first) == traced
    # All ranks come from digests, with the run's record.
    assert command("digest", str(first)).returncode == 0
    shutil.rmtree(first / "traces")
    assert analysis_without_paths(first) == traced

    # Records of a different run, or without a run id, are not merged.
    (second / "ranks" / "rank1.json").rename(tmp_path / "rank1.json")
    with pytest.raises(UnreadableInputError, match="holds no records"):
        gather(first, [second])
    with pytest.raises(UnreadableInputError, match="does not exist"):
        gather(first, [tmp_path / "nowhere"])
    rank = read_json(tmp_path / "rank1.json", RankRecord, RANK_SCHEMA)
    write_json(second / "ranks" / "rank1.json", msgspec.structs.replace(rank, run_id="another"))
    with pytest.raises(UnreadableInputError, match="another run"):
        gather(first, [second])


@pytest.mark.xdist_group("processes")
def test_two_machines_with_a_shared_directory(tmp_path: Path) -> None:
    run_dir = tmp_path / "shared" / "run"
    train((run_dir, run_dir), LOOPBACK, torchrun=False)
    run = read_json(run_dir / "run.json", RunRecord, RUN_SCHEMA)
    assert [(rank.rank, rank.host, rank.run_id) for rank in run.ranks] == [
        (0, "node0", run.run_id),
        (1, "node1", run.run_id),
    ]
    assert (run.status, gpudiag.analyze(run_dir).ranks_present) == ("complete", (0, 1))


def test_hostile_record_reads_no_other_file(tmp_path: Path) -> None:
    for node in ("a", "b"):
        (tmp_path / node / "ranks").mkdir(parents=True)
        (tmp_path / node / "traces").mkdir()
    ours = RankRecord(rank=0, local_rank=0, host="a", pid=1, device="cpu", device_name="", run_id="r")
    run = RunRecord(
        created="", command=(), workload="w", framework="pytorch", strategy="own", world_size=3, nodes=2,
        batch_size_per_device=None, ranks=(ours,), status="complete", run_id="r",
    )  # fmt: skip
    write_json(tmp_path / "a" / "run.json", run)
    (tmp_path / "secret").write_text("s", encoding="utf-8")
    link = "traces/rank2.pt.trace.json.gz"
    (tmp_path / "b" / link).symlink_to(tmp_path / "secret")
    # One path leads out of the directory, one trace is a link, and the job has no rank 9.
    for rank, trace in ((1, "../secret"), (2, link), (9, None)):
        record = msgspec.structs.replace(ours, rank=rank, trace=trace, error="it died" if rank == 2 else None)
        write_json(tmp_path / "b" / "ranks" / f"rank{rank}.json", record)
    whole = gather(tmp_path / "a", [tmp_path / "b"])
    assert [rank.rank for rank in whole.ranks] == [0, 1, 2]
    assert (whole.status, whole.error) == ("failed", "rank 2: it died")
    assert list((tmp_path / "a" / "traces").iterdir()) == []


def test_links_to_digests_are_not_followed(tmp_path: Path) -> None:
    for node in ("a", "b"):
        (tmp_path / node / "ranks").mkdir(parents=True)
        (tmp_path / node / "digests").mkdir()
    ours = RankRecord(rank=0, local_rank=0, host="a", pid=1, device="cpu", device_name="", run_id="r")
    run = RunRecord(
        created="", command=(), workload="w", framework="pytorch", strategy="own", world_size=3, nodes=2,
        batch_size_per_device=None, ranks=(ours,), status="complete", run_id="r",
    )  # fmt: skip
    write_json(tmp_path / "a" / "run.json", run)
    (tmp_path / "secret").write_text("s", encoding="utf-8")
    (tmp_path / "b" / "digests" / "rank1.gpudiag-digest").symlink_to(tmp_path / "secret")
    (tmp_path / "b" / "digests" / "rank2.gpudiag-digest").write_bytes(b"d")
    for rank in (1, 2):
        write_json(tmp_path / "b" / "ranks" / f"rank{rank}.json", msgspec.structs.replace(ours, rank=rank))
    gather(tmp_path / "a", [tmp_path / "b"])
    assert [path.name for path in (tmp_path / "a" / "digests").iterdir()] == ["rank2.gpudiag-digest"]
    (tmp_path / "a" / "digests" / "rank2.gpudiag-digest").unlink()
    (tmp_path / "a" / "digests").rmdir()
    (tmp_path / "a" / "digests").symlink_to(tmp_path)
    write_json(tmp_path / "a" / "run.json", run)
    with pytest.raises(UnreadableInputError, match="leads out of its directory"):
        gather(tmp_path / "a", [tmp_path / "b"])


def test_line_logs_of_ranks_and_their_workers_are_copied(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for node in (first, second):
        (node / "ranks").mkdir(parents=True)
        (node / "lines").mkdir()
    ours = RankRecord(rank=0, local_rank=0, host="a", pid=1, device="cpu", device_name="", run_id="r")
    run = RunRecord(
        created="", command=(), workload="w", framework="pytorch", strategy="own", world_size=4, nodes=2,
        batch_size_per_device=None, ranks=(ours,), status="complete", run_id="r",
    )  # fmt: skip
    write_json(first / "run.json", run)
    for rank in (1, 2, 3):
        write_json(second / "ranks" / f"rank{rank}.json", msgspec.structs.replace(ours, rank=rank, host="b", pid=rank))

    def write_log(node: Path, name: str, host: str, pid: int, parent: int) -> None:
        log = {"schema": LINES_SCHEMA, "host": host, "pid": pid, "parent": parent}
        (node / "lines" / f"{name}.json.gz").write_bytes(gzip.compress(msgspec.json.encode(log)))

    # Process numbers are equal on both nodes, as in containers.
    write_log(first, "rank0", "a", 1, 0)
    write_log(first, "worker7", "a", 7, 1)
    write_log(second, "rank1", "b", 1, 0)
    write_log(second, "worker7", "b", 7, 1)
    write_log(second, "worker8", "b", 8, 99)  # the log is of another program
    write_log(tmp_path / "b", "secret", "b", 2, 0)
    (second / "lines" / "secret.json.gz").rename(tmp_path / "secret")
    (second / "lines" / "rank2.json.gz").symlink_to(tmp_path / "secret")
    (second / "lines" / "rank3.json.gz").write_bytes(b"no log")
    gather(first, [second])
    names = {path.name for path in (first / "lines").iterdir()}
    assert names == {"rank0.json.gz", "worker7.json.gz", "rank1.json.gz", "worker7-rank1.json.gz"}
    logs = find_line_logs([first])
    assert [[worker.host for worker in logs.workers_of(rank)] for rank in (0, 1)] == [["a"], ["b"]]


def test_line_logs_are_not_read_through_links(tmp_path: Path) -> None:
    log = gzip.compress(msgspec.json.encode({"schema": LINES_SCHEMA, "pid": 1, "parent": 0}))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "rank0.json.gz").write_bytes(log)
    (tmp_path / "lines").symlink_to(tmp_path / "elsewhere")
    assert read_log_origins(tmp_path) == {}
    (tmp_path / "lines").unlink()
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "rank0.json.gz").symlink_to(tmp_path / "elsewhere" / "rank0.json.gz")
    assert read_log_origins(tmp_path) == {}
    shutil.copy(tmp_path / "elsewhere" / "rank0.json.gz", tmp_path / "lines" / "rank1.json.gz")
    assert list(read_log_origins(tmp_path)) == ["rank1.json.gz"]


def test_clock_that_is_ahead_is_corrected_and_the_residual_reported(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests" / "traces" / "slow_loader_rank2", tmp_path / "moved")
    (moved,) = [
        path for path in (tmp_path / "moved").iterdir() if "rank1" in path.name.replace("_", "").replace("-", "")
    ]
    trace = msgspec.json.decode(gzip.decompress(moved.read_bytes()))
    trace["baseTimeNanoseconds"] = int(trace["baseTimeNanoseconds"]) + 7_300_000
    moved.write_bytes(gzip.compress(msgspec.json.encode(trace)))
    before, after = (
        gpudiag.analyze(ROOT / "tests" / "traces" / "slow_loader_rank2"),
        gpudiag.analyze(tmp_path / "moved"),
    )
    offsets = {clock.rank: clock.offset_ms for clock in after.clocks}
    unmoved = {clock.rank: clock.offset_ms for clock in before.clocks}
    assert offsets[1] - unmoved[1] == pytest.approx(-7.3, abs=0.1)
    assert all(clock.residual_ms < 0.1 for clock in after.clocks)
    assert header_lines(before) == []
    assert header_lines(after)[-1].startswith("The ranks' clocks agree to ")
    for old, new in zip(before.devices, after.devices, strict=True):
        assert new.buckets_ms["communication_wait"] == pytest.approx(old.buckets_ms["communication_wait"], abs=0.3)
