"""Test `gpudiag doctor` on recorded machines and trees, and on readings that hang."""

from __future__ import annotations

import io
import threading
import time
from pathlib import Path

import msgspec
import pytest

from gpudiag.app.doctor import DoctorOptions, doctor, judge
from gpudiag.model.checkup import CHECK_CODES, CHECKUP_SCHEMA, Checkup, worst_status
from gpudiag.model.checkup.surroundings import Surroundings
from gpudiag.model.facts import Facts
from gpudiag.report.facts.doctor import render_checkup
from tests.machines import NAMES, machine, write_tree
from tests.report.consoles import console

pytestmark = pytest.mark.processes


def statuses(checkup: Checkup) -> dict[str, str]:
    return {check.code: check.status for check in checkup.checks}


def test_container_without_gpus_has_every_check(tmp_path: Path) -> None:
    checkup = doctor(DoctorOptions(root=write_tree("container-2-cpus", tmp_path), limit_s=60))
    assert checkup.schema == CHECKUP_SCHEMA
    found = statuses(checkup)
    assert tuple(found) == CHECK_CODES
    assert found["interpreter"] == found["framework"] == "ok"
    assert found["cpu-cores"] == "warning", "two CPUs for two ranks"
    assert found["shared-memory"] == "unknown", "the tree has no /dev/shm"
    assert worst_status(checkup) == "warning"


def test_driver_that_hangs_is_a_check_and_the_rest_is_complete(tmp_path: Path) -> None:
    never = threading.Event()

    def hang() -> Facts:
        never.wait()
        return machine("h200x4")

    options = DoctorOptions(root=write_tree("container-2-cpus", tmp_path), limit_s=10)
    began = time.perf_counter()
    checkup = doctor(options, inventory=hang)
    took = time.perf_counter() - began
    never.set()
    assert took < 4 * (options.limit_s + 2)
    found = statuses(checkup)
    assert found["gpu-driver"] == "blocked"
    assert found["cpu-cores"] == "warning"
    assert found["framework"] == "ok"


def test_interpreter_that_hangs_is_unknown(tmp_path: Path) -> None:
    stuck = tmp_path / "python"
    stuck.write_text("#!/bin/sh\nexec sleep 600\n")
    stuck.chmod(0o755)
    root = write_tree("container-2-cpus", tmp_path / "root")
    checkup = doctor(DoctorOptions(python=str(stuck), root=root, limit_s=2))
    checks = {check.code: check for check in checkup.checks}
    assert checks["interpreter"].status == "unknown"
    assert checks["interpreter"].not_seen == "the interpreter did not answer within 2 s"


def test_copies_that_cannot_start_are_reported_with_a_reason(tmp_path: Path) -> None:
    """The recorded machine has four GPUs, but the test runs without GPUs, so the probe of copies finds none."""
    options = DoctorOptions(root=write_tree("container-2-cpus", tmp_path), limit_s=60)
    checks = {check.code: check for check in doctor(options, inventory=lambda: machine("h200x4")).checks}
    assert checks["peer-access"].status == "ok"
    assert checks["peer-access"].not_seen
    assert checks["framework"].status == "blocked", "this interpreter's PyTorch is built without CUDA"


@pytest.mark.parametrize("name", NAMES)
def test_reports_of_recorded_machines_name_every_check(name: str) -> None:
    checkup = judge(machine(name), Surroundings())
    target = console(100)
    render_checkup(checkup, target)
    assert isinstance(target.file, io.StringIO)
    text = target.file.getvalue()
    for code in CHECK_CODES:
        assert code in text
    assert machine(name).host.name not in msgspec.json.encode(checkup).decode()
