"""Test `gpudiag doctor` as a process on this machine."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from gpudiag.machine.inventory.gather import gather_inventory
from gpudiag.model.checkup import CHECK_CODES
from tests.cli_process import gpudiag, in_this_process

pytestmark = pytest.mark.processes


def test_json_has_every_check_and_nothing_personal() -> None:
    ended = gpudiag("doctor", "--json", "--ranks", "4096")
    assert (ended.returncode, ended.stderr) == (0, ""), "warnings do not change the exit code"
    checkup = json.loads(ended.stdout)
    assert checkup["schema"] == "gpudiag/doctor/1"
    assert tuple(check["code"] for check in checkup["checks"]) == CHECK_CODES
    checks = {check["code"]: check for check in checkup["checks"]}
    assert checks["cpu-cores"]["status"] == "warning", "no machine has two cores for each of 4096 ranks"
    assert checkup["summary"]["python"] == platform.python_version()
    assert platform.node() not in ended.stdout
    if str(Path.home()) != "/":
        assert str(Path.home()) not in ended.stdout


def test_crossed_threshold_gives_exit_code_1() -> None:
    ended = gpudiag("doctor", "--ranks", "4096", "--fail-on", "warning", "--width", "80")
    assert ended.returncode == 1
    assert ended.stderr == "gpudiag: --fail-on warning was crossed\n"
    assert "cpu-cores" in ended.stdout
    assert "→" in ended.stdout


def test_missing_framework_blocks_a_job(tmp_path: Path) -> None:
    ended = gpudiag("doctor", "--python", str(tmp_path / "none"), "--fail-on", "blocked", "--no-copies")
    assert ended.returncode == 1
    assert "cannot be run" in ended.stdout
    if not gather_inventory().gpus:
        assert "No NVIDIA GPU" in ended.stdout


@pytest.mark.parametrize("words", [("--fail-on", "maybe"), ("--framework", "jax"), ("--ranks", "0")])
def test_invalid_arguments_are_refused(words: tuple[str, str]) -> None:
    ended = in_this_process("doctor", *words)
    assert ended.returncode == 2
    assert "hint: " in ended.stderr
