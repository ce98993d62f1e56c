"""Test `gpudiag topology` as a process, on this machine and from saved facts."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gpudiag.machine.inventory.gather import gather_inventory
from tests.cli_process import SECONDS, gpudiag, in_this_process
from tests.machines import HERE

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes


def test_this_machine_is_shown_and_saved_alike(tmp_path: Path) -> None:
    shown = gpudiag("topology", "--width", "80")
    assert shown.returncode == 0, shown.stderr
    assert "Host" in shown.stdout
    assert shown.stderr == ""
    here = gather_inventory()
    if not here.gpus:
        assert "no NVIDIA GPU" in shown.stdout
    saved = tmp_path / "facts.json"
    result = gpudiag("topology", "--json", "--save", str(saved))
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["schema"] == "gpudiag/facts/1"
    assert facts["host"]["name"] == here.host.name
    assert saved.read_text() == result.stdout
    again = gpudiag("topology", "--from", str(saved), "--json")
    assert again.stdout == result.stdout


def test_require_gpu_without_a_gpu_gives_exit_code_3() -> None:
    ended = in_this_process("topology", "--require-gpu")
    has_gpu = bool(gather_inventory().gpus)
    assert ended.returncode == (0 if has_gpu else 3)
    assert "Host" in ended.stdout, "the host is shown even without a GPU"
    if not has_gpu:
        what, hint = ended.stderr.splitlines()
        assert "no NVIDIA GPU: " in what
        assert "--require-gpu" in hint


def test_saved_facts_of_another_machine_are_shown(tmp_path: Path) -> None:
    shown = in_this_process("topology", "--from", str(HERE / "7gforce-v2.json"), "--require-gpu", "--width", "100")
    assert shown.returncode == 0, shown.stderr
    for words in (
        "7gforce-v2",
        "GeForce GTX 1080 Ti",
        "degraded-link",
        "peer-slower-than-host",
        "2 GPUs, directly connected",
    ):
        assert words in shown.stdout
    topology = json.loads(in_this_process("topology", "--from", str(HERE / "7gforce-v2.json"), "--json").stdout)
    assert [f["code"] for f in topology["findings"]][:2] == ["degraded-link", "degraded-link"]


def test_findings_in_a_file_are_replaced(tmp_path: Path) -> None:
    tree = json.loads((HERE / "h200x4.json").read_text())
    tree["findings"] = [{"code": "throttled", "severity": "critical", "title": "pay here", "advice": ["run this"]}]
    forged = tmp_path / "facts.json"
    forged.write_text(json.dumps(tree))
    shown = in_this_process("topology", "--from", str(forged))
    assert "pay here" not in shown.stdout
    assert "No problem found" in shown.stdout


@pytest.mark.parametrize("content", [None, "", "{}", '{"schema": "gpudiag/facts/2"}', '{"schema": "gpudiag/facts/1"}'])
def test_unreadable_facts_are_refused(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    if content is not None:
        path.write_text(content)
    ended = in_this_process("topology", "--from", str(path))
    assert ended.returncode == 4
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 2
    assert "Traceback" not in ended.stderr


def test_unwritable_file_is_refused(tmp_path: Path) -> None:
    ended = in_this_process("topology", "--save", str(tmp_path))
    assert ended.returncode == 5
    assert "cannot write" in ended.stderr


def test_neither_a_framework_nor_a_plotting_library_is_imported() -> None:
    program = (
        "import sys; from gpudiag.commands.main import main; main(['topology', '--json'])\n"
        "heavy = {'torch', 'tensorflow', 'pandas', 'plotly', 'xprof'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert ended.returncode == 0, ended.stderr
