"""Compare the inventory of a machine with NVIDIA GPUs with the output of nvidia-smi at the same time.

    python -m pytest -s tests/gpu/test_topology_gpu.py

The tests take about ten seconds and print the duration of the command and its parts.
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from gpudiag.analysis.diagnosis.hardware import examine_facts
from gpudiag.machine.inventory.gather import gather_inventory
from gpudiag.machine.inventory.host.pci import normal_pci_id
from gpudiag.model.throttle import IDLE
from tests.cli_process import gpudiag

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpudiag.model.facts import Facts, Gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs an NVIDIA GPU and nvidia-smi"),
]

#: Property in nvidia-smi → the same property of gpudiag.
SAME: dict[str, Callable[[Gpu], Any]] = {
    "name": lambda gpu: gpu.name,
    "uuid": lambda gpu: gpu.uuid,
    "memory.total": lambda gpu: (gpu.memory_bytes or 0) >> 20,
    "clocks.max.sm": lambda gpu: gpu.sm_clock.maximum_mhz,
    "clocks.max.mem": lambda gpu: gpu.memory_clock.maximum_mhz,
    "clocks.mem": lambda gpu: gpu.memory_clock.current_mhz,
    "pcie.link.gen.max": lambda gpu: gpu.pcie.maximum_generation,
    "pcie.link.width.max": lambda gpu: gpu.pcie.maximum_width,
    "pcie.link.width.current": lambda gpu: gpu.pcie.width,
    "power.limit": lambda gpu: gpu.power_limit_watts,
    "compute_cap": lambda gpu: gpu.compute_capability,
    "ecc.mode.current": lambda gpu: gpu.ecc,
    "mig.mode.current": lambda gpu: gpu.mig,
    "persistence_mode": lambda gpu: gpu.persistence,
    "compute_mode": lambda gpu: gpu.compute_mode,
    "driver_version": lambda gpu: None,
}
#: Property in nvidia-smi that changes between two readings → (property of gpudiag, accepted difference).
NEAR: dict[str, tuple[Callable[[Gpu], Any], float]] = {
    "temperature.gpu": (lambda gpu: gpu.temperature_c, 5),
    "power.draw": (lambda gpu: gpu.power_watts, 60),
    "memory.used": (lambda gpu: (gpu.memory_used_bytes or 0) >> 20, 1024),
}
UNSTATED = {"[N/A]", "N/A", "[Not Supported]", "[Unknown Error]"}


def query(*properties: str) -> list[dict[str, str]]:
    command = ["nvidia-smi", f"--query-gpu={','.join(properties)}", "--format=csv,noheader,nounits"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return [dict(zip(properties, row, strict=True)) for row in csv.reader(answer.splitlines(), skipinitialspace=True)]


@pytest.fixture(scope="module")
def facts() -> Facts:
    began = time.perf_counter()
    facts = gather_inventory()
    print(f"\ninventory: {time.perf_counter() - began:.3f} s for {len(facts.gpus)} GPUs")  # noqa: T201  # for the user
    return facts


def same(text: str, ours: object) -> bool:
    """Return whether nvidia-smi's text states the same value as gpudiag."""
    if isinstance(ours, bool):
        return text == ("Enabled" if ours else "Disabled")
    if isinstance(ours, tuple):
        return text == ".".join(map(str, ours))
    if isinstance(ours, (int, float)):
        return float(text) == pytest.approx(float(ours))
    return text.lower().replace("_", " ") == str(ours).lower()


def test_constant_properties_equal_nvidia_smi(facts: Facts) -> None:
    rows = query("index", "pci.bus_id", *SAME)
    assert [int(row["index"]) for row in rows] == [gpu.index for gpu in facts.gpus]
    for row, gpu in zip(rows, facts.gpus, strict=True):
        assert normal_pci_id(row["pci.bus_id"]) == gpu.pci_id
        assert row["driver_version"] == facts.host.driver
        for name, ours in SAME.items():
            if name == "driver_version":
                continue
            value = ours(gpu)
            if row[name] in UNSTATED:
                assert value is None, name
            else:
                assert same(row[name], value), (name, row[name], value)


def test_varying_properties_are_close_to_nvidia_smi(facts: Facts) -> None:
    for row, gpu in zip(query(*NEAR), facts.gpus, strict=True):
        for name, (ours, margin) in NEAR.items():
            if row[name] not in UNSTATED:
                assert float(row[name]) == pytest.approx(ours(gpu), abs=margin), name


def test_link_kinds_equal_nvidia_smi(facts: Facts) -> None:
    answer = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=True, timeout=60).stdout
    plain = re.sub(r"\x1b\[[\d;]*m", "", answer)
    matrix = [re.split(r"\s+", line.strip()) for line in plain.splitlines() if re.match(r"GPU\d+\s", line)]
    count = len(facts.gpus)
    for link in facts.links:
        assert matrix[link.a][1 + link.b] == link.kind
    if count > 1:
        p2p = subprocess.run(
            ["nvidia-smi", "topo", "-p2p", "r"], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        plain = re.sub(r"\x1b\[[\d;]*m", "", p2p)
        matrix = [line.split() for line in plain.splitlines() if re.match(r"\s*GPU\d+\s+(X|OK|\w+)\s", line)]
        rows = [row for row in matrix if "X" in row]
        for link in facts.links:
            assert (rows[link.a][1 + link.b] == "OK") is link.peer_access


def test_nvlink_lanes_equal_nvidia_smi(facts: Facts) -> None:
    answer = subprocess.run(
        ["nvidia-smi", "nvlink", "-s"], capture_output=True, text=True, check=False, timeout=60
    ).stdout
    blocks = re.split(r"^GPU \d+:", answer, flags=re.MULTILINE)[1:]
    for gpu, block in zip(facts.gpus, blocks, strict=False):
        rates = [float(rate) for rate in re.findall(r"Link \d+: ([\d.]+) GB/s", block)]
        assert [track.gb_per_s for track in gpu.nvlinks if track.active] == pytest.approx(rates, rel=0.01)
        assert all(track.version for track in gpu.nvlinks if track.active)


def test_idle_machine_has_no_findings(facts: Facts) -> None:
    if any(IDLE not in gpu.throttle_reasons for gpu in facts.gpus):
        pytest.skip("a GPU is busy")
    wrong = [f for f in examine_facts(facts) if f.severity != "info" and f.code != "no-peer-access"]
    assert wrong == [], "this machine has a problem that the finding names, or the finding is wrong"


def test_missing_properties_have_a_reason(facts: Facts) -> None:
    for gpu in facts.gpus:
        for field in gpu.__struct_fields__:
            if getattr(gpu, field) is None:
                assert gpu.reasons.get(field), field
        for domain in ("sm_clock", "memory_clock", "pcie"):
            part = getattr(gpu, domain)
            for field in part.__struct_fields__:
                assert getattr(part, field) is not None or gpu.reasons.get(f"{domain}.{field}"), f"{domain}.{field}"


def test_topology_command_succeeds_and_its_duration_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    gpudiag("topology", "--json")  # fill the file cache
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        ended = gpudiag("topology", "--require-gpu", "--width", "100")
        seconds.append(time.perf_counter() - began)
        assert ended.returncode == 0, ended.stderr
    with capsys.disabled():
        took = f"{min(seconds):.2f} to {max(seconds):.2f} s"
        print(f"\n{ended.stdout}\ngpudiag topology, whole process: {took}")  # noqa: T201  # for the user


def test_hidden_gpus_are_marked() -> None:
    assert [gpu.visible for gpu in gather_inventory(environment={"CUDA_VISIBLE_DEVICES": "0"}).gpus][:2] in (
        [True], [True, False],
    )  # fmt: skip
    assert not any(gpu.visible for gpu in gather_inventory(environment={"CUDA_VISIBLE_DEVICES": ""}).gpus)
