"""Test the readings of `gpudiag doctor`: permissions of a recorded tree, a compiled fake CUPTI, copies on fake GPUs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpudiag.machine.inventory.host.gather import gather_host
from gpudiag.machine.surroundings.cupti import find_cupti
from gpudiag.machine.surroundings.peer_copies import copy_between_gpus
from gpudiag.machine.surroundings.permissions import read_permissions
from gpudiag.machine.surroundings.watchdog import Reading
from tests.machines import machine, write_tree
from tests.probed_machine import inventory

FAKE_CUDA = Path(__file__).parents[1] / "probes" / "fake_cuda"
#: Output of `cat /proc/driver/nvidia/params`, in parts, of driver 580.
PARAMS = "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {}\nPreserveVideoMemoryAllocations: 0\n"


def test_permissions_of_a_recorded_container_are_read(tmp_path: Path) -> None:
    root = write_tree("container-2-cpus", tmp_path)
    read = read_permissions(root, None)
    assert (read.allowed_cpus, read.cpu_quota, read.wsl) == ("0-1", None, False)
    assert read.may_profile is True
    assert read.profiling_restricted is None
    assert read.reasons == {"profiling_restricted": "/proc/driver/nvidia/params cannot be read"}
    host = gather_host(root, {})
    assert (host.usable_cpus, host.threads, host.memlock_bytes) == (2, 2, 8 << 20)


@pytest.mark.parametrize(
    ("capabilities", "driver", "may"),
    [
        ("0000000000000000", "580.82", False),
        ("0000000000200000", None, True),  # CAP_SYS_ADMIN
        ("0000004000000000", "580.82", True),  # CAP_PERFMON
        ("0000004000000000", "550.54", False),
    ],
)
def test_capabilities_known_to_the_driver_permit_profiling(
    tmp_path: Path, capabilities: str, driver: str | None, may: bool
) -> None:
    files = {
        "proc/self/status": f"CapEff:\t{capabilities}\nCpus_allowed_list:\t0\n",
        "proc/driver/nvidia/params": PARAMS.format(1),
    }
    read = read_permissions(write_tree("container-2-cpus", tmp_path, **files), driver)
    assert (read.profiling_restricted, read.may_profile) == (True, may)


def test_unrestricted_driver_is_recognized(tmp_path: Path) -> None:
    files = {"proc/driver/nvidia/params": PARAMS.format(0)}
    assert read_permissions(write_tree("container-2-cpus", tmp_path, **files), None).profiling_restricted is False


def test_windows_subsystem_is_named_by_its_kernel(tmp_path: Path) -> None:
    files = {"proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2\n"}
    assert read_permissions(write_tree("container-2-cpus", tmp_path, **files), None).wsl


def test_reading_that_blocks_gives_a_reason() -> None:
    forever = threading.Event()
    value, reason = Reading("the driver", forever.wait, 0.1).result()
    assert (value, reason) == (None, "the driver did not answer within 0.1 s")
    forever.set()


@pytest.mark.processes
def test_child_process_that_hangs_gives_the_same_reason() -> None:
    def hang() -> None:
        subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"], timeout=0.1, check=True)

    assert Reading("CUPTI", hang, 60).result() == (None, "CUPTI did not answer within 60 s")


def test_reading_that_fails_gives_a_reason() -> None:
    value, reason = Reading("the driver", lambda: 1 // 0, 60).result()
    assert value is None
    assert reason is not None
    assert reason.startswith("the driver failed: ZeroDivisionError")
    assert Reading("the driver", lambda: 7, 60).result() == (7, None)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of packages with a CUPTI as NVIDIA's wheels install it."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler to build the fake library with")
    folder = tmp_path_factory.mktemp("site")
    target = folder / "nvidia" / "cuda_cupti" / "lib" / "libcupti.so.12"
    target.parent.mkdir(parents=True)
    source = Path(__file__).with_name("fake_cupti.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(target), str(source)], check=True, timeout=60)
    return folder


@pytest.mark.processes
class TestCupti:
    def test_working_cupti_has_a_version_and_no_error(self, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", str(site))
        seen = find_cupti(sys.executable, 60)
        assert seen.path == str(site / "nvidia" / "cuda_cupti" / "lib" / "libcupti.so.12")
        assert (seen.version, seen.error) == (26, None)

    def test_refusal_has_the_name_of_its_error(self, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", str(site))
        monkeypatch.setenv("FAKE_CUPTI", "35")
        assert find_cupti(sys.executable, 60).error == "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"

    def test_library_that_hangs_or_crashes_ends_only_the_child(
        self, site: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYTHONPATH", str(site))
        monkeypatch.setenv("FAKE_CUPTI", "-1")
        with pytest.raises(subprocess.TimeoutExpired):
            find_cupti(sys.executable, 2)
        monkeypatch.setenv("FAKE_CUPTI", "-2")
        with pytest.raises(ValueError, match="exit code -6"):
            find_cupti(sys.executable, 60)


@pytest.mark.processes
class TestCopies:
    @pytest.fixture(autouse=True)
    def _fake_driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(FAKE_CUDA), os.environ.get("PYTHONPATH", ""))))
        monkeypatch.setattr("gpudiag.machine.surroundings.peer_copies.installed", lambda module: True)

    def fake(self, monkeypatch: pytest.MonkeyPatch, **options: object) -> None:
        monkeypatch.setenv("FAKE_CUDA", json.dumps(options))

    def test_copies_between_two_gpus_are_verified(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake(monkeypatch)
        facts, seen = copy_between_gpus(inventory(2), 60)
        assert (seen.status, seen.pairs) == ("ok", 1)
        assert {copy.verified for copy in facts.bandwidth} == {True}
        assert facts.skipped == ()

    def test_wrong_data_is_in_the_facts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake(monkeypatch, corrupt=True)
        facts, _ = copy_between_gpus(inventory(2), 60)
        assert False in {copy.verified for copy in facts.bandwidth}

    def test_failed_call_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake(monkeypatch, fail="cuCtxEnablePeerAccess")
        _, seen = copy_between_gpus(inventory(2), 60)
        assert seen.status == "failed"
        assert "cuCtxEnablePeerAccess" in (seen.reason or "")


def test_one_gpu_is_not_copied() -> None:
    facts = machine("staging-area-box")
    kept, seen = copy_between_gpus(facts, 60)
    assert (kept, seen.status) == (facts, "skipped")
