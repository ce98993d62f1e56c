"""Test `gpudiag bandwidth` on a machine without a GPU, and from saved facts."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from gpudiag.commands import main as cli
from gpudiag.machine.facts_file import save_facts
from gpudiag.machine.probes.programs import programs_directory
from gpudiag.report.figures import TIMES
from tests.cli_process import gpudiag
from tests.probed_machine import four_h200

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes


@pytest.fixture
def no_gpu_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.probed_machine import inventory as machine

    facts = machine(0)
    facts.host.reasons["gpus"] = "no NVIDIA GPU on the PCI bus"
    monkeypatch.setattr("gpudiag.app.bandwidth.gather_inventory", lambda: facts)
    monkeypatch.setattr("gpudiag.machine.probes.plan.installed", lambda _: False)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "facts.json"
    save_facts(four_h200(), path)
    return path


def test_saved_figures_are_shown_without_a_gpu(saved: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = gpudiag("bandwidth", "--from", str(saved), "--html", str(page))
    assert result.returncode == 0, result.stderr
    assert f"4 {TIMES} NVIDIA H200" in result.stdout
    assert "Direct, one way" in result.stdout
    assert "\x1b" not in result.stdout
    assert page.read_text().startswith("<!doctype html>")


def test_standard_output_has_only_json(saved: Path) -> None:
    result = gpudiag("bandwidth", "--from", str(saved), "--json")
    document = json.loads(result.stdout)
    assert document["schema"] == "gpudiag/facts/1"
    assert len(document["collective_fits"]) == 4
    assert result.stderr == ""


@pytest.mark.usefixtures("no_gpu_no_torch")
class TestMeasuring:
    def test_missing_required_hardware_gives_exit_code_3(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["bandwidth", "--require-gpu"]) == 3
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "no NVIDIA GPU on the PCI bus" in shown.err

    def test_failed_probe_gives_exit_code_5_and_others_are_shown(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        broken = tmp_path / "probes"
        shutil.copytree(programs_directory(), broken)
        (broken / "host_memory.py").write_text("raise SystemExit('the memory is on fire')")
        monkeypatch.setattr("gpudiag.machine.measure.programs_directory", lambda: broken)
        path = tmp_path / "facts.json"
        assert cli.main(["bandwidth", "--quick", "--save", str(path)]) == 5
        shown = capsys.readouterr()
        assert "host memory: the probe ended with exit code 1: the memory is on fire" in shown.out
        assert "1 of the probes failed: host memory" in shown.err
        facts = json.loads(path.read_text())
        assert facts["probes"]["host memory"]["status"] == "failed"

    def test_from_and_quick_are_refused_together(self, saved: Path) -> None:
        assert cli.main(["bandwidth", "--quick", "--from", str(saved)]) == 2


def test_file_without_facts_gives_exit_code_4(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_text("{}")
    assert cli.main(["bandwidth", "--from", str(path)]) == 4


def test_findings_are_computed_again_from_saved_figures(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(saved.read_text())
    document["bandwidth"][0]["verified"] = False
    document["findings"] = [{"code": "made-up", "severity": "critical"}]
    saved.write_text(json.dumps(document))
    assert cli.main(["bandwidth", "--from", str(saved), "--json"]) == 0
    codes = [finding["code"] for finding in json.loads(capsys.readouterr().out)["findings"]]
    assert "corrupt-transfer" in codes
    assert "made-up" not in codes
