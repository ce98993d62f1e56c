"""Test that a plugin strategy in one file of a separate package is listed, trained, predicted and measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import pytest

from gpudiag.errors import UsageError
from gpudiag.training.strategies import registry
from gpudiag.training.strategies.tensorflow_strategy import TensorflowStrategy
from tests.cli_process import environment, in_this_process
from tests.cli_process import gpudiag as run_cli
from tests.forked_jobs import with_forked_jobs
from tests.machines import HERE as MACHINES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "one-by-one"

#: Source text of the complete strategy, which the registry finds by the entry point.
FILE = '''
"""`one-by-one`: each gradient is all-reduced by itself, after backward."""

import gpudiag
from gpudiag.prediction.cost import Cost
from gpudiag.training.strategies.pytorch_strategy import PytorchStrategy


class OneByOne(PytorchStrategy):
    """The simplest communication: no buckets and no overlap."""

    name = "one-by-one"
    summary = "Each gradient is all-reduced by itself, after backward."
    least_devices = 2
    backend = "gloo"

    def wrap(self, model):
        import torch.distributed as dist

        self.check_model(model)
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), src=0)
        return model

    def exchange(self, model):
        import torch.distributed as dist

        self.check_gradients(model)
        with gpudiag.range("exchange"):
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

    @classmethod
    def transport(cls, candidate, *, on_gpu, p2p):
        return "one-by-one"

    @classmethod
    def cost(cls, now, candidate):
        curve = now.curve("one-by-one")
        each = [curve.time_ms(size) if curve else 1.0 + size / 1e6 for size in now.model.sizes]
        return Cost(exposed_ms=sum(each), exchange_ms=sum(each), reason=f"{len(each)} gradients, nothing hidden")

    @classmethod
    def code(cls, candidate):
        return ("for parameter in model.parameters():", "    torch.distributed.all_reduce(parameter.grad)")
'''


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Install the strategy's package in a directory, and return a PYTHONPATH with this directory."""
    directory = tmp_path_factory.mktemp("package")
    (directory / "their_strategy.py").write_text(FILE)
    info = directory / "their_strategy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-strategy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[gpudiag.strategies]\n{NAME} = their_strategy:OneByOne\n")
    return os.pathsep.join((str(directory), *filter(None, [os.environ.get("PYTHONPATH")])))


def _json(package: str, *words: str) -> dict[str, Any]:
    result = run_cli(*words, "--json", PYTHONPATH=package)
    assert result.returncode == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.mark.parametrize(
    "words", [("profile", "--strategy", "nicl"), ("scale", "--strategies", "nicl"), ("recommend", "--only", "nicl")]
)
@pytest.mark.processes
def test_commands_list_plugin_strategy_last(package: str, words: tuple[str, ...]) -> None:
    result = run_cli(*words, PYTHONPATH=package)
    assert result.returncode == 2, result.stderr
    assert f"independent, {NAME}." in result.stderr


@pytest.mark.processes
def test_help_lists_plugin_strategy(package: str) -> None:
    result = run_cli("profile", "--help", PYTHONPATH=package, COLUMNS="300")
    assert f"independent|{NAME}" in result.stdout


@pytest.fixture
def installed(package: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the package in this process and in its child processes."""
    monkeypatch.setenv("PYTHONPATH", package)
    monkeypatch.syspath_prepend(package.partition(os.pathsep)[0])
    registry.strategies.cache_clear()
    yield
    registry.strategies.cache_clear()


@pytest.mark.usefixtures("installed")
@pytest.mark.xdist_group("processes")
def test_plugin_strategy_is_trained(tmp_path: Path) -> None:
    words = ("profile", "trivial", "--strategy", NAME, "--devices", "2", "--steps", "3", "--warmup", "1", "--json")
    result = with_forked_jobs(*words, "--output", str(tmp_path / "run"))
    assert (result.returncode, json.loads(result.stdout)["schema"]) == (0, "gpudiag/analysis/1"), result.stderr
    run = json.loads((tmp_path / "run" / "run.json").read_bytes())
    assert (run["strategy"], run["status"]) == (NAME, "complete")
    refused = in_this_process("profile", "trivial", "--strategy", NAME, "--devices", "1")
    assert refused.returncode == 3
    assert f"{NAME} needs at least 2 devices" in refused.stderr


@pytest.mark.processes
def test_plugin_strategy_is_predicted(package: str, tmp_path: Path) -> None:
    sizes = tmp_path / "sizes.json"
    sizes.write_text("[4000000, 8000000]")
    given = ("--facts", str(MACHINES / "h200x4.json"), "--gradients", str(sizes), "--compute-ms", "20")
    answer = _json(package, "recommend", "--predict-only", "--only", NAME, *given)
    assert answer["recommended"] == NAME
    assert answer["flags"] == ["--strategy", NAME]
    assert answer["code"].endswith("all_reduce(parameter.grad)")
    ranked = {ranked["strategy"]: ranked for ranked in answer["ranking"]}
    # Two gradients of 4 and 8 MB take 1 ms plus 1 ms per MB each, without overlap.
    assert ranked[NAME]["predicted_step_ms"] == pytest.approx(20 + 2 + 12)


@pytest.mark.measured
@pytest.mark.xdist_group("processes")
def test_plugin_strategy_is_measured(package: str, tmp_path: Path) -> None:
    words = ("recommend", "trivial", "--only", f"gloo,{NAME}", "--devices", "2", "--budget", "50")
    answer = _json(package, *words, "--output", str(tmp_path / "run"))
    measured = {ranked["strategy"]: ranked["measured_step_ms"] for ranked in answer["ranking"]}
    assert measured.keys() == {"gloo", NAME, "independent"}
    assert all(step is not None for step in measured.values())
    contest = json.loads(next((tmp_path / "run").glob("*-trivial.json")).read_bytes())
    assert {transport["strategy"] for transport in contest["transports"]} == {"gloo", NAME}


@pytest.mark.measured
@pytest.mark.xdist_group("processes")
def test_plugin_strategy_is_scaled(package: str, tmp_path: Path) -> None:
    words = ("scale", "trivial", "--strategies", NAME, "--devices", "2", "--quick", "--seconds", "0.5")
    points = _json(package, *words, "--output", str(tmp_path / "scaling"))["points"]
    # On one device the strategy does not communicate, so `independent` is measured.
    assert {(point["strategy"], point["devices"]) for point in points} == {(NAME, 2), ("independent", 1)}
    assert all(point["status"] == "measured" for point in points)


@pytest.mark.measured
@pytest.mark.xdist_group("processes")
def test_plugin_transport_is_measured_with_bucket_sizes(package: str) -> None:
    facts = _json(package, "bandwidth", "--quick", "--like", "resnet20-cifar")
    like = {collective["strategy"] for collective in facts["collectives"] if collective["ranks"] == 2}
    assert {"gloo", "cpu-reduce", NAME} <= like


@pytest.mark.processes
def test_registry_imports_no_framework(package: str) -> None:
    program = f"""
import sys
from gpudiag.training.strategies.registry import strategies
assert "{NAME}" in strategies() and len(strategies("tensorflow")) == 8
assert not {{"torch", "tensorflow"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], check=True, env=environment(PYTHONPATH=package))


class AnotherNccl(TensorflowStrategy):
    """A strategy whose name is already taken."""

    name = "nccl"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("no_such_module:Strategy", "cannot be loaded: ModuleNotFoundError"),
        (f"{__name__}:AnotherNccl", "two strategies 'nccl'"),
    ],
)
def test_faulty_plugin_package_is_named(monkeypatch: pytest.MonkeyPatch, value: str, said: str) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [EntryPoint("theirs", value, group)])
    registry.strategies.cache_clear()
    try:
        with pytest.raises(UsageError, match=said):
            registry.strategies("tensorflow")
    finally:
        registry.strategies.cache_clear()
