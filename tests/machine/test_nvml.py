"""Test the inventory of GPUs with a fake NVML: a complete machine, and every failing call."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pynvml
import pytest

from gpudiag.machine.inventory.gather import gather_inventory
from gpudiag.machine.inventory.gpus.nvml import open_nvml
from gpudiag.model import throttle
from gpudiag.model.facts import Facts, Gpu, GpuProcess, Host, Link, MigInstance, NvLink
from gpudiag.model.throttle import reasons_in_words
from tests.machine.fake_nvml import FakeNvml
from tests.machines import machine

EMPTY = Path("/nonexistent")


def inventory(fake: FakeNvml, root: Path = EMPTY, **environment: str) -> Facts:
    return gather_inventory(fake, root, environment)


def two(**fields: object) -> Facts:
    gpus = tuple(Gpu(index=i, name="Example", uuid=f"GPU-{i}", **fields) for i in range(2))  # type: ignore[arg-type]  # any field
    return Facts(host=Host(), gpus=gpus, links=(Link(a=0, b=1, kind="PHB", peer_access=True),))


def test_recorded_machine_is_read_unchanged() -> None:
    recorded = machine("h200x4")
    facts = inventory(FakeNvml(recorded))
    for gpu, was in zip(facts.gpus, recorded.gpus, strict=True):
        for name in set(gpu.__struct_fields__) - {"reasons", "memory_used_bytes"}:
            assert getattr(gpu, name) == getattr(was, name), name
        assert set(was.reasons) <= set(gpu.reasons)
    assert facts.links == recorded.links
    assert facts.islands == ((0, 1, 2, 3),)
    assert (facts.host.driver, facts.host.cuda_driver) == ("580.159.04", "13.0")


def test_links_of_an_old_machine_have_kinds_and_denial_reasons() -> None:
    recorded = machine("7gforce-v2")
    facts = inventory(FakeNvml(recorded))
    assert [(x.a, x.b, x.kind, x.peer_access) for x in facts.links] == [
        (x.a, x.b, x.kind, x.peer_access) for x in recorded.links
    ]
    assert (
        facts.links[0].reason
        == "GPU not supported (GNS): this model, or this model in a virtual machine, has no peer access"
    )
    assert facts.islands == ((0, 3), (1, 2), (4,), (5, 6))


REFUSALS = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: "not supported",
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission",
    pynvml.NVML_ERROR_UNKNOWN: "unknown error",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "older than",
    pynvml.NVML_ERROR_GPU_IS_LOST: "fallen off the bus",
    pynvml.NVML_ERROR_TIMEOUT: "Timeout",
}
#: NVML function → field of the inventory that it fills. An error of the function is recorded under the name of the
#: field.
FIELDS = {
    "nvmlDeviceGetName": "name",
    "nvmlDeviceGetUUID": "uuid",
    "nvmlDeviceGetPciInfo": "pci_id",
    "nvmlDeviceGetCudaComputeCapability": "compute_capability",
    "nvmlDeviceGetMemoryInfo": "memory_bytes",
    "nvmlDeviceGetMemoryBusWidth": "memory_bus_bits",
    "nvmlDeviceGetClockInfo": "memory_clock.current_mhz",
    "nvmlDeviceGetMaxClockInfo": "sm_clock.maximum_mhz",
    "nvmlDeviceGetApplicationsClock": "memory_clock.application_mhz",
    "nvmlDeviceGetCurrentClocksEventReasons": "throttle_reasons",
    "nvmlDeviceGetPowerUsage": "power_watts",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_watts",
    "nvmlDeviceGetTemperature": "temperature_c",
    "nvmlDeviceGetTemperatureThreshold": "temperature_limit_c",
    "nvmlDeviceGetEccMode": "ecc",
    "nvmlDeviceGetTotalEccErrors": "ecc_uncorrected",
    "nvmlDeviceGetMigMode": "mig",
    "nvmlDeviceGetComputeMode": "compute_mode",
    "nvmlDeviceGetPersistenceMode": "persistence",
    "nvmlDeviceGetCurrPcieLinkGeneration": "pcie.generation",
    "nvmlDeviceGetCurrPcieLinkWidth": "pcie.width",
    "nvmlDeviceGetMaxPcieLinkGeneration": "pcie.maximum_generation",
    "nvmlDeviceGetMaxPcieLinkWidth": "pcie.maximum_width",
    "nvmlDeviceGetNvLinkState": "nvlinks",
    "nvmlDeviceGetMemoryAffinity": "numa_node",
    "nvmlDeviceGetCpuAffinity": "cpu_affinity",
    "nvmlDeviceGetComputeRunningProcesses_v3": "processes",
}
#: Functions with a fallback in older drivers, or with a specific reason for their failure.
OTHERWISE = {
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetMemoryAffinity",
}


@pytest.mark.parametrize("code", REFUSALS)
@pytest.mark.parametrize("function", FIELDS)
def test_failed_query_leaves_only_its_field_empty(function: str, code: int) -> None:
    recorded = machine("h200x4")
    whole = inventory(FakeNvml(recorded)).gpus[1]
    fake = FakeNvml(recorded, refuse={(function, 1): code})
    facts = inventory(fake)
    assert fake.opened == 0, "NVML is shut down again"
    gpu, field = facts.gpus[1], FIELDS[function]
    # An older function may have filled the field instead.
    answered_otherwise = function in OTHERWISE and field not in gpu.reasons
    if not answered_otherwise:
        assert function in OTHERWISE or REFUSALS[code] in gpu.reasons[field]
        value: object = gpu
        for part in field.split("."):
            value = getattr(value, part)
        assert value in (None, (), "unknown GPU")
    for name in ("uuid", "pci_id", "power_watts", "temperature_c", "compute_mode", "cpu_affinity", "memory_bytes"):
        if name != field:
            assert getattr(gpu, name) == getattr(whole, name)
    assert facts.gpus[0] == inventory(FakeNvml(recorded)).gpus[0]


@pytest.mark.parametrize("code", REFUSALS)
def test_failed_query_about_the_machine_has_a_reason(code: int) -> None:
    recorded = machine("h200x4")
    for function, field in (
        ("nvmlSystemGetDriverVersion", "driver"),
        ("nvmlSystemGetCudaDriverVersion_v2", "cuda_driver"),
        ("nvmlDeviceGetCount", "gpus"),
    ):
        reasons = inventory(FakeNvml(recorded, refuse={function: code})).host.reasons
        assert field in reasons
        if field != "cuda_driver":  # the CUDA version has an older function as fallback
            assert REFUSALS[code] in reasons[field]
    facts = inventory(FakeNvml(recorded, refuse={"nvmlDeviceGetP2PStatus": code}))
    assert {link.peer_access for link in facts.links} == {None}
    assert all(REFUSALS[code] in (link.reason or "") for link in facts.links)
    facts = inventory(FakeNvml(recorded, refuse={"nvmlDeviceGetHandleByIndex": code}))
    assert all(REFUSALS[code] in gpu.reasons["gpu"] for gpu in facts.gpus)


def test_lost_gpu_does_not_affect_other_gpus() -> None:
    fake = FakeNvml(machine("h200x4"), refuse={("nvmlDeviceGetHandleByIndex", 2): pynvml.NVML_ERROR_GPU_IS_LOST})
    facts = inventory(fake)
    assert [gpu.name for gpu in facts.gpus] == ["NVIDIA H200", "NVIDIA H200", "unreadable GPU", "NVIDIA H200"]
    assert "Xid 79" in facts.gpus[2].reasons["gpu"]
    assert {link.kind for link in facts.links if 2 in {link.a, link.b}} == {"unknown"}
    assert facts.islands == ((0, 1, 3), (2,))


def test_older_driver_or_binding_uses_older_functions() -> None:
    recorded = two(
        throttle_reasons=(throttle.HARDWARE_THERMAL,), processes=(GpuProcess(pid=999_999_9, memory_bytes=5),)
    )
    older_driver = {
        "nvmlDeviceGetCurrentClocksEventReasons": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        "nvmlDeviceGetComputeRunningProcesses_v3": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    }
    for fake in (FakeNvml(recorded, refuse=older_driver), FakeNvml(recorded, missing=tuple(older_driver))):
        facts = inventory(fake)
        assert facts.gpus[0].throttle_reasons == (throttle.HARDWARE_THERMAL,)
        assert facts.gpus[0].processes[0].memory_bytes == 5
        assert "throttle_reasons" not in facts.gpus[0].reasons


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "libnvidia-ml.so.1"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "kernel module is not loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "different versions"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "no permission to open"),
        (pynvml.NVML_ERROR_UNKNOWN, "could not start"),
    ],
)
def test_driver_failures_have_distinct_reasons(code: int, words: str, tmp_path: Path) -> None:
    facts = inventory(FakeNvml(machine("h200x4"), refuse={"nvmlInit": code}))
    assert facts.gpus == ()
    assert words in facts.host.reasons["gpus"]
    assert facts.host.reasons["gpus"].startswith("none on the PCI bus")
    device = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    facts = inventory(FakeNvml(machine("h200x4"), refuse={"nvmlInit": code}), tmp_path)
    assert facts.host.reasons["gpus"].startswith("PCI shows 1 NVIDIA GPU (0000:3b:00.0), but")


def test_missing_python_binding_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    with open_nvml() as session:
        assert session.ask({}, "x", "nvmlDeviceGetCount") is None
        assert session.unavailable == "the Python package nvidia-ml-py is not installed"


def test_installed_nvml_opens_or_has_a_reason() -> None:
    with open_nvml() as session:
        assert (session.unavailable is None) == (session.module is not None)


def test_nvml_is_shut_down_after_an_error() -> None:
    fake = FakeNvml(machine("h200x4"))
    with pytest.raises(RuntimeError), open_nvml(fake):
        raise RuntimeError
    assert fake.opened == 0
    fake = FakeNvml(machine("h200x4"), refuse={"nvmlShutdown": pynvml.NVML_ERROR_GPU_IS_LOST})
    with open_nvml(fake):
        pass


def test_mig_instances_are_listed() -> None:
    slices = (MigInstance(uuid="MIG-a1", name="Example MIG 1g.10gb", memory_bytes=10 << 30), MigInstance(uuid="MIG-a2"))
    recorded = two()
    sliced = msgspec.structs.replace(recorded.gpus[0], mig=True, mig_instances=slices)
    plain = msgspec.structs.replace(recorded.gpus[1], mig=False)
    facts = msgspec.structs.replace(recorded, gpus=(sliced, plain))
    found = inventory(FakeNvml(facts), CUDA_VISIBLE_DEVICES="MIG-a2")
    assert [instance.uuid for instance in found.gpus[0].mig_instances] == ["MIG-a1", "MIG-a2"]
    assert found.gpus[0].mig_instances[0].memory_bytes == 10 << 30
    assert [gpu.visible for gpu in found.gpus] == [True, False]


def test_only_nvlink_lanes_to_the_other_gpu_count() -> None:
    def lanes(*remotes: str) -> tuple[NvLink, ...]:
        return tuple(
            NvLink(lane=i, active=True, version=2, gb_per_s=25.781, remote=remote, remote_kind="gpu")
            for i, remote in enumerate(remotes)
        )

    ids = ("0000:06:00.0", "0000:07:00.0", "0000:0a:00.0")
    remotes = ((ids[1], ids[1], ids[2]), (ids[0], ids[0]), (ids[0],))
    gpus = tuple(Gpu(index=i, name="Example", pci_id=ids[i], nvlinks=lanes(*remotes[i])) for i in range(3))
    links = tuple(Link(a=a, b=b, kind="SYS", peer_access=True) for a, b in ((0, 1), (0, 2), (1, 2)))
    facts = inventory(FakeNvml(Facts(host=Host(), gpus=gpus, links=links)))
    assert [link.kind for link in facts.links] == ["NV2", "NV1", "SYS"]
    assert facts.gpus[0].nvlinks[0] == gpus[0].nvlinks[0]


def test_nvlinks_with_hidden_remote_ends_have_the_drivers_link_kind() -> None:
    hidden = tuple(NvLink(lane=i, active=True, version=4) for i in range(18))
    gpus = tuple(Gpu(index=i, name="Example", nvlinks=hidden) for i in range(2))
    joined = Facts(host=Host(), gpus=gpus, links=(Link(a=0, b=1, kind="NV18", lanes=18, peer_access=True),))
    assert inventory(FakeNvml(joined)).links[0].kind == "NV18"
    apart = msgspec.structs.replace(joined, links=(Link(a=0, b=1, kind="PHB", peer_access=True),))
    assert inventory(FakeNvml(apart)).links[0].kind == "PHB"


@pytest.mark.parametrize("status", [1, 2, 3, 4, 5, 6, 77])
def test_reason_for_denied_peer_access_is_from_the_driver(status: int) -> None:
    recorded = msgspec.structs.replace(two(), links=(Link(a=0, b=1, kind="SYS", peer_access=False),))
    (link,) = inventory(FakeNvml(recorded, p2p_status={(0, 1): status})).links
    assert link.peer_access is False
    assert link.reason
    assert ("status 77" in link.reason) == (status == 77)


def test_processes_are_listed_once_and_relatives_are_marked(tmp_path: Path) -> None:
    import os

    proc = tmp_path / "proc"
    for pid, parent, name in (
        (os.getpid(), 50, "gpudiag"),
        (50, 1, "bash"),
        (77, os.getpid(), "probe"),
        (99, 1, "other"),
    ):
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "status").write_text(f"Name:\t{name}\nPPid:\t{parent}\n")
        (proc / str(pid) / "comm").write_text(f"{name}\n")
    held = tuple(
        GpuProcess(pid=pid, name=f"far-{pid}", memory_bytes=pid) for pid in (os.getpid(), 50, 77, 99, 8_888_888)
    )
    facts = inventory(FakeNvml(two(processes=held)), tmp_path)
    assert {p.name: p.own for p in facts.gpus[0].processes} == {
        "gpudiag": True, "bash": True, "probe": True, "other": False, "far-8888888": False,
    }  # fmt: skip


def test_text_of_the_machine_is_sanitized(tmp_path: Path) -> None:
    (tmp_path / "proc/99").mkdir(parents=True)
    (tmp_path / "proc/99/comm").write_text("evil\x1b[2J\u202e")
    facts = inventory(FakeNvml(two(processes=(GpuProcess(pid=99),))), tmp_path, NCCL_DEBUG="\x1b]0;title\x07")
    assert facts.gpus[0].processes[0].name == "evil\ufffd[2J\ufffd"
    assert facts.host.environment == {"NCCL_DEBUG": "\ufffd]0;title\ufffd"}


def test_every_reason_has_a_text() -> None:
    assert reasons_in_words(0) == ()
    assert reasons_in_words(0x1) == ("idle",)
    assert reasons_in_words(0x48) == ("hardware slowdown", "hardware thermal slowdown")
    assert reasons_in_words(0x1001) == ("idle", "unknown reason 0x1000")
