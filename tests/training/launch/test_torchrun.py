"""The command line and environment given to torchrun."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpudiag.model.job import Job, Rendezvous
from gpudiag.training.frameworks.registry import framework_named
from gpudiag.training.launch import Plan
from gpudiag.training.launch.environment import environment

command_line = framework_named("pytorch").command_line


def plan(**changes: Any) -> Plan:
    given: dict[str, Any] = {
        "workload": "mlp",
        "strategy": "gloo",
        "device": "cpu",
        "python": "py",
        "command": ("gpudiag",),
    }
    return Plan(job=Job(**given | changes), run_dir=Path("run"), processes=3, threads=5)


def test_one_node_meets_on_the_loopback_address() -> None:
    words = command_line(plan())
    assert words[0] == "py"
    assert Path(words[1]).name == "torchrun.py"
    assert {"--nproc-per-node=3", "--nnodes=1", "--rdzv-endpoint=127.0.0.1:0"} <= set(words)
    worker = words.index("gpudiag.training.jobs")
    assert Path(words[worker + 1]).is_absolute()
    assert json.loads(words[worker + 2])["workload"] == "mlp"


def test_several_nodes_meet_where_they_are_told() -> None:
    meeting = Rendezvous(endpoint="host0:29500", backend="static", node_rank=1)
    given = plan(nodes=2, rendezvous=meeting)
    assert {"--nnodes=2", "--node-rank=1", "--rdzv-endpoint=host0:29500", "--rdzv-backend=static"} <= set(
        command_line(given)
    )
    assert (given.world_size, given.leads) == (6, False)
    assert plan(nodes=2, rendezvous=Rendezvous(endpoint="h:1", backend="static", node_rank=0)).leads
    # The others number the nodes themselves: who has rank 0 is seen when it starts.
    assert not plan(nodes=2, rendezvous=Rendezvous(endpoint="h:1", node_rank=0)).leads
    assert plan().leads


def test_several_nodes_meet_under_a_word_of_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert not any("word" in word for word in command_line(plan(nodes=2, rendezvous=options.rendezvous)))


def values(tmp_path: Path, inherited: dict[str, str], *, has_gpudiag: bool = True, **changes: Any) -> dict[str, str]:
    return environment(plan(**changes), tmp_path, tmp_path / "progress", has_gpudiag=has_gpudiag, inherited=inherited)


def test_what_the_user_has_set_stays(tmp_path: Path) -> None:
    mine = {"OMP_NUM_THREADS": "9", "NCCL_ALGO": "Tree", "GLOO_SOCKET_IFNAME": "eth3"}
    assert values(tmp_path, mine).items() >= mine.items()
    assert values(tmp_path, {})["OMP_NUM_THREADS"] == "5"


def test_nccl_is_left_alone_unless_told(tmp_path: Path) -> None:
    assert {name for name in values(tmp_path, {}) if name.startswith("NCCL")} == {"NCCL_SOCKET_IFNAME"}
    assert values(tmp_path, {}, p2p=False)["NCCL_P2P_DISABLE"] == "1"


def test_an_interpreter_without_gpudiag_gets_it_and_nothing_else(tmp_path: Path) -> None:
    added = values(tmp_path, {"PYTHONPATH": "/mine"}, has_gpudiag=False)["PYTHONPATH"].split(":")
    assert added[1] == "/mine"
    assert [path.name for path in Path(added[0]).iterdir()] == ["gpudiag"]
    assert (Path(added[0]) / "gpudiag" / "errors.py").is_file()


def test_temporary_files_go_where_they_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert values(tmp_path, {"TMPDIR": "/elsewhere"})["TMPDIR"] == str(tmp_path)
