"""Test that cached measurements belong to this machine, are recent and private, and are limited in number."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from gpudiag.machine.probes import cache
from gpudiag.machine.probes.cache import cache_directory, cached_measurements, keep_measurements
from gpudiag.model.facts import Facts, Link
from tests.probed_machine import four_h200, inventory


def machine(**environment: str) -> Facts:
    facts = inventory()
    gpus = tuple(msgspec.structs.replace(gpu, uuid=f"GPU-{gpu.index}") for gpu in facts.gpus)
    return msgspec.structs.replace(facts, gpus=gpus, host=msgspec.structs.replace(facts.host, environment=environment))


def measured(**environment: str) -> Facts:
    probed = four_h200()
    loaded = {gpu.index: gpu for gpu in probed.gpus}
    here = machine(**environment)
    gpus = tuple(msgspec.structs.replace(gpu, pcie=loaded[gpu.index].pcie) for gpu in here.gpus)
    return msgspec.structs.replace(probed, host=here.host, gpus=gpus)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    keep_measurements(measured(), tmp_path / "probes")
    return tmp_path / "probes"


def test_cached_measurements_are_added_to_a_fresh_inventory(kept: Path) -> None:
    now = msgspec.structs.replace(machine(), created="2030-01-01T00:00:00+00:00")
    cached = cached_measurements(now, "nccl", kept)
    assert cached is not None
    assert cached.created == now.created
    assert cached.collectives == measured().collectives
    assert cached.bandwidth == measured().bandwidth
    assert all(gpu.pcie.under_load for gpu in cached.gpus)
    assert cached.probes["measured"] == measured().created


def test_other_machine_or_transport_misses_the_cache(kept: Path) -> None:
    def changed(**fields: object) -> Facts:
        return msgspec.structs.replace(machine(), **fields)

    host = machine().host
    assert cached_measurements(changed(gpus=machine().gpus[:2]), "nccl", kept) is None
    assert cached_measurements(changed(host=msgspec.structs.replace(host, driver="1.2")), "nccl", kept) is None
    assert cached_measurements(changed(links=(Link(a=0, b=1, kind="PHB"),)), "nccl", kept) is None
    assert cached_measurements(machine(NCCL_ALGO="Tree"), "nccl", kept) is None
    assert cached_measurements(machine(HOME_MADE="1"), "nccl", kept) is not None
    assert cached_measurements(machine(), "gloo", kept) is None


def test_old_and_future_files_are_ignored(kept: Path) -> None:
    for age in (cache.MAX_AGE_S + 60, -3600):
        for path in kept.iterdir():
            os.utime(path, (time.time() - age, time.time() - age))
        assert cached_measurements(machine(), "nccl", kept) is None


def test_invalid_files_are_ignored(kept: Path) -> None:
    for path in kept.iterdir():
        path.write_bytes(path.read_bytes()[:1000])
    assert cached_measurements(machine(), "nccl", kept) is None


def test_file_of_another_machine_is_rejected(kept: Path) -> None:
    other = msgspec.structs.replace(measured(), links=())
    keep_measurements(other, kept.parent / "other")
    mine, others = (min(folder.glob("*-nccl.json")) for folder in (kept, kept.parent / "other"))
    mine.write_bytes(others.read_bytes())
    assert cached_measurements(machine(), "nccl", kept) is None


def test_only_the_user_can_read_and_write(kept: Path) -> None:
    assert kept.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in kept.iterdir()} == {0o600}
    kept.chmod(0o777)
    assert cached_measurements(machine(), "nccl", kept) is None


def test_symlink_instead_of_the_directory_is_not_followed(kept: Path) -> None:
    link = kept.parent / "link"
    link.symlink_to(kept)
    before = sorted(kept.iterdir())
    keep_measurements(measured(NCCL_ALGO="Ring"), link)
    assert sorted(kept.iterdir()) == before
    assert cached_measurements(machine(), "nccl", link) is None


def test_oldest_files_are_deleted(kept: Path) -> None:
    for number in range(cache.MOST_FILES + 3):
        keep_measurements(measured(NCCL_MAX_NCHANNELS=str(number)), kept)
    assert len(list(kept.iterdir())) == cache.MOST_FILES
    assert cached_measurements(machine(), "nccl", kept) is None
    assert cached_measurements(machine(NCCL_MAX_NCHANNELS=str(number)), "nccl", kept) is not None


def test_machine_without_nccl_writes_no_cache_file(tmp_path: Path) -> None:
    keep_measurements(machine(), tmp_path / "probes")
    assert not (tmp_path / "probes").exists()


def test_write_errors_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    keep_measurements(measured(), tmp_path / "file" / "probes")
    assert cached_measurements(machine(), "nccl", tmp_path / "file" / "probes") is None


def test_the_directory_follows_the_xdg_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_directory({"XDG_CACHE_HOME": "/var/c"}) == Path("/var/c/gpudiag/probes")
    for value in ("", "relative"):
        assert cache_directory({"XDG_CACHE_HOME": value}) == Path("/home/someone/.cache/gpudiag/probes")
