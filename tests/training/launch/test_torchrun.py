"""Test the command line and environment given to torchrun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpudiag.model.job import Job, Rendezvous
from gpudiag.training.frameworks.pytorch.torchrun import opened, signed
from gpudiag.training.frameworks.registry import framework_named
from gpudiag.training.launch import Plan
from gpudiag.training.launch.launcher import environment
from tests.cli_process import SECONDS
from tests.cli_process import environment as environment_of_programs

REQUEST = Path("/private/request.json")


def command_line(given: Plan) -> list[str]:
    return framework_named("pytorch").command_line(given, REQUEST)


def plan(**changes: Any) -> Plan:
    """Return the plan of a job with three processes, with `changes` to the job."""
    given: dict[str, Any] = {
        "workload": "mlp",
        "strategy": "gloo",
        "device": "cpu",
        "python": "py",
        "command": ("gpudiag",),
    }
    return Plan(job=Job(**given | changes), run_dir=Path("run"), processes=3, threads=5)


def test_single_node_needs_no_torchrun(tmp_path: Path) -> None:
    words = command_line(plan())
    assert Path(words[2]).name == "starter.py"
    assert words[3:6] == ["pytorch", "3", "py"]
    assert "-P" in words[6:8]
    assert values(tmp_path, {})["GPUDIAG_STORE"] == str(tmp_path / "store")
    worker = words.index("gpudiag.training.jobs")
    assert words[worker + 1 :] == [str(Path("run").resolve()), str(REQUEST)]


def test_nodes_meet_at_given_rendezvous() -> None:
    meeting = Rendezvous(endpoint="host0:29500", backend="static", node_rank=1)
    given = plan(nodes=2, rendezvous=meeting)
    assert {"--nnodes=2", "--node-rank=1", "--rdzv-endpoint=host0:29500", "--rdzv-backend=static"} <= set(
        command_line(given)
    )
    assert (given.world_size, given.has_rank_0) == (6, False)
    assert plan(nodes=2, rendezvous=Rendezvous(endpoint="h:1", backend="static", node_rank=0)).has_rank_0
    # The nodes agree on their numbers, so rank 0 is known only after the start.
    assert not plan(nodes=2, rendezvous=Rendezvous(endpoint="h:1", node_rank=0)).has_rank_0
    assert plan().has_rank_0


def test_several_nodes_need_shared_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpudiag.errors import UsageError
    from gpudiag.model.job import RunOptions
    from gpudiag.training.frameworks.pytorch.framework import SECRET_VARIABLE

    options = RunOptions(workload="mlp", nodes=2, rendezvous=Rendezvous(endpoint="h:1"))
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    with pytest.raises(UsageError, match=SECRET_VARIABLE):
        framework_named("pytorch").check(options)
    monkeypatch.setenv(SECRET_VARIABLE, "word")
    framework_named("pytorch").check(options)
    given = values(tmp_path, {SECRET_VARIABLE: "word"}, nodes=2, rendezvous=options.rendezvous)
    assert len(given["PET_RDZV_ID"]) == 64
    assert "GPUDIAG_STORE" not in given
    assert not any("word" in word for word in command_line(plan(nodes=2, rendezvous=options.rendezvous)))


def values(tmp_path: Path, inherited: dict[str, str], *, has_gpudiag: bool = True, **changes: Any) -> dict[str, str]:
    return environment(plan(**changes), tmp_path, tmp_path / "progress", has_gpudiag=has_gpudiag, inherited=inherited)


def test_user_variables_are_kept(tmp_path: Path) -> None:
    mine = {"OMP_NUM_THREADS": "9", "NCCL_ALGO": "Tree", "GLOO_SOCKET_IFNAME": "eth3"}
    assert values(tmp_path, mine).items() >= mine.items()
    assert values(tmp_path, {})["OMP_NUM_THREADS"] == "5"


def test_nccl_variables_are_set_only_on_request(tmp_path: Path) -> None:
    assert {name for name in values(tmp_path, {}) if name.startswith("NCCL")} == {"NCCL_SOCKET_IFNAME"}
    assert values(tmp_path, {}, p2p=False)["NCCL_P2P_DISABLE"] == "1"


def test_interpreter_without_gpudiag_gets_gpudiag_only(tmp_path: Path) -> None:
    added = values(tmp_path, {"PYTHONPATH": "/mine"}, has_gpudiag=False)["PYTHONPATH"].split(":")
    assert added[1] == "/mine"
    assert [path.name for path in Path(added[0]).iterdir()] == ["gpudiag"]
    assert (Path(added[0]) / "gpudiag" / "errors.py").is_file()


def test_temporary_files_go_into_private_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert values(tmp_path, {"TMPDIR": "/elsewhere"})["TMPDIR"] == str(tmp_path)


_KEY = "torch.rendezvous.id"


def test_rendezvous_state_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUDIAG_SECRET", "word")
    kept = signed(_KEY, "c3RhdGU=")
    assert opened(_KEY, kept.encode()) == b"c3RhdGU="
    assert signed(_KEY, "") == ""
    monkeypatch.setenv("GPUDIAG_SECRET", "another")
    for forged in (kept, "c3RhdGU=", "c3RhdGU=.", "\u00e9", ""):
        with pytest.raises(RuntimeError, match="does not know GPUDIAG_SECRET"):
            opened(_KEY, forged.encode())


_STORES = """
import base64, importlib, sys
sys.path.insert(0, sys.argv[1])
from torch import distributed
plain = distributed.TCPStore
from torchrun import stores_on_their_hosts
stores_on_their_hosts()
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

ours = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
backend = C10dRendezvousBackend(ours, "id")
assert backend.get_state() is None
state, token, done = backend.set_state(b"first")
assert (state, done) == (b"first", True), state
state, token, done = backend.set_state(b"second", token)
assert (state, done) == (b"second", True), state
assert backend.set_state(b"third", b"stale")[2] is False
assert backend.get_state()[0] == b"second"
foreign = plain("127.0.0.1", ours.port, is_master=False, wait_for_workers=False)
foreign.set("torch.rendezvous.id", base64.b64encode(b"a pickle").decode())
try:
    backend.get_state()
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.processes
def test_torchrun_does_not_unpickle_unsigned_state() -> None:
    import gpudiag.training.frameworks.pytorch

    folder = str(Path(gpudiag.training.frameworks.pytorch.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-P", "-c", _STORES, folder],
        capture_output=True,
        text=True,
        env=environment_of_programs() | {"GPUDIAG_SECRET": "word"},
        timeout=SECONDS,
        check=False,
    )
    assert done.stdout.strip() in {"RendezvousConnectionError", "RuntimeError"}, done.stderr
