"""Test the checks on recorded machines, and on recorded machines with one change."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpudiag.analysis.checkup import JobSetting, run_checks
from gpudiag.analysis.diagnosis.hardware import examine_facts
from gpudiag.model.checkup import CHECK_CODES, Check
from gpudiag.model.checkup.surroundings import CuptiSeen, PeerCopiesSeen, PythonSeen, Surroundings
from gpudiag.model.facts import Facts, Gpu, Nic, NumaNode
from tests.machines import NAMES, machine

PYTHON = PythonSeen(
    path="/opt/job/bin/python", framework_title="PyTorch", version="3.12.3", framework="2.11.0", cuda="13.0"
)
READ = Surroundings(
    python=PYTHON,
    cupti=CuptiSeen(path="/x/libcupti.so.13", version=130001),
    peers=PeerCopiesSeen(status="ok", pairs=6),
    profiling_restricted=True,
    may_profile=False,
    allowed_cpus="0-63",
)
#: Values that the recordings of the H200 machine lack.
ROOMY = {"shm_bytes": 64 << 30, "shm_free_bytes": 64 << 30, "memlock_bytes": -1}


def checks(facts: Facts, surroundings: Surroundings = READ, ranks: int | None = None) -> dict[str, Check]:
    facts = msgspec.structs.replace(facts, findings=examine_facts(facts))
    visible = sum(gpu.visible for gpu in facts.gpus)
    found = run_checks(JobSetting(facts=facts, surroundings=surroundings, ranks=ranks or visible or 2))
    assert tuple(check.code for check in found) == CHECK_CODES
    return {check.code: check for check in found}


def h200(**host: Any) -> Facts:
    facts = machine("h200x4")
    return msgspec.structs.replace(facts, host=msgspec.structs.replace(facts.host, **{**ROOMY, **host}))


def surroundings(**changes: Any) -> Surroundings:
    return msgspec.structs.replace(READ, **changes)


def with_links(facts: Facts, **changes: Any) -> Facts:
    return msgspec.structs.replace(facts, links=tuple(msgspec.structs.replace(link, **changes) for link in facts.links))


def test_healthy_machine_has_no_problems() -> None:
    found = checks(h200())
    assert {check.status for check in found.values()} == {"ok", "not-needed"}
    assert found["nccl-transport"].title == "NCCL will likely use P2P over NVLink for 6 of 6 pairs."
    assert "Hardware counters are for administrators only" in found["profiler-access"].title


@pytest.mark.parametrize("name", NAMES)
def test_problems_have_fixes_and_unknown_checks_have_reasons(name: str) -> None:
    for check in checks(machine(name), Surroundings()).values():
        assert check.title.endswith(".")
        if check.status in {"warning", "blocked"}:
            assert check.fix
        if check.status == "unknown":
            assert check.not_seen


def test_unrecorded_values_have_status_unknown_not_ok() -> None:
    found = checks(machine("h200x4"), Surroundings())
    unknown = {code for code, check in found.items() if check.status == "unknown"}
    assert unknown == {"interpreter", "framework", "profiler-access", "shared-memory"}
    assert found["peer-access"].not_seen == "not tried"


def test_recorded_machines_have_their_peer_access_status() -> None:
    assert checks(machine("az-2x-m60"))["peer-access"].status == "warning"
    assert checks(machine("7gforce-v2"))["peer-access"].status == "warning"
    assert checks(machine("dgx-1"))["peer-access"].status == "ok", "a ring of direct links is enough for NCCL"
    unknown = checks(machine("patrick-4x"), surroundings(peers=None))
    assert unknown["peer-access"].status == unknown["nccl-transport"].status == "unknown"
    assert checks(machine("staging-area-box"))["peer-access"].status == "not-needed"


def test_hung_or_corrupt_peer_copies_have_status_blocked() -> None:
    hung = PeerCopiesSeen(status="hung", reason="had not finished after 20 s")
    check = checks(h200(), surroundings(peers=hung))["peer-access"]
    assert check.status == "blocked"
    assert any("setpci" in step for step in check.fix)
    assert any("NCCL_P2P_DISABLE=1" in step for step in check.fix)
    late = PeerCopiesSeen(status="late", reason="was not ready to measure after 20 s")
    assert checks(h200(), surroundings(peers=late))["peer-access"].status == "unknown"
    facts = h200()
    wrong = tuple(
        msgspec.structs.replace(copy, verified=False) if copy.path == "peer" else copy for copy in facts.bandwidth
    )
    assert checks(msgspec.structs.replace(facts, bandwidth=wrong))["peer-access"].status == "blocked"


@pytest.mark.parametrize(
    ("environment", "links", "transport", "status", "step"),
    [
        ({}, {}, "P2P over NVLink", "ok", ""),
        ({"NCCL_P2P_DISABLE": "1"}, {}, "SHM (host memory)", "warning", "unset NCCL_P2P_DISABLE"),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, {}, "NET (network)", "warning", "unset NCCL_SHM_DISABLE"),
        ({"NCCL_P2P_LEVEL": "LOC"}, {}, "SHM (host memory)", "warning", "unset NCCL_P2P_LEVEL"),
        ({}, {"kind": "PXB", "lanes": 0}, "P2P over PCIe", "ok", ""),
        ({}, {"kind": "PHB", "lanes": 0}, "SHM (host memory)", "warning", "NCCL_P2P_LEVEL=SYS"),
        ({"NCCL_P2P_LEVEL": "3"}, {"kind": "PHB", "lanes": 0}, "P2P over PCIe", "ok", ""),
        ({}, {"kind": "PIX", "lanes": 0, "peer_access": False}, "SHM (host memory)", "ok", ""),
    ],
)
def test_likely_nccl_transport_follows_links_and_variables(
    environment: dict[str, str], links: dict[str, Any], transport: str, status: str, step: str
) -> None:
    facts = with_links(h200(environment=environment, hypervisor=None), **links)
    check = checks(facts)["nccl-transport"]
    assert (check.title, check.status) == (f"NCCL will likely use {transport} for 6 of 6 pairs.", status)
    assert any(step in fix for fix in check.fix) == bool(step)


def test_two_gpus_of_an_amd_machine_use_peer_access_at_any_distance() -> None:
    facts = with_links(h200(cpu="AMD EPYC 9654", hypervisor=None), kind="SYS", lanes=0)
    gpus = tuple(msgspec.structs.replace(gpu, visible=gpu.index < 2) for gpu in facts.gpus)
    facts = msgspec.structs.replace(facts, gpus=gpus)
    assert checks(facts)["nccl-transport"].title == "NCCL will likely use P2P over PCIe for 1 of 1 pairs."


def test_iommu_and_acs_concern_pcie_only() -> None:
    translating = {"iommu": "on, translating", "acs": "redirects peer traffic through the CPU at 0000:3c:04.0"}
    assert checks(h200(**translating, hypervisor=None))["iommu-acs"].status == "ok"
    pcie = with_links(h200(**translating, hypervisor=None), kind="PIX", lanes=0)
    check = checks(pcie)["iommu-acs"]
    assert check.status == "warning"
    assert "iommu=pt" in check.fix[0]
    assert "setpci" in check.fix[1]
    virtual = with_links(h200(**translating), kind="PIX", lanes=0)
    assert checks(virtual)["iommu-acs"].status == "unknown"
    reasons = {"acs": "reading the configuration space of bridges takes root"}
    hidden = with_links(h200(iommu="off", acs=None, hypervisor=None, reasons=reasons), kind="PIX", lanes=0)
    check = checks(hidden)["iommu-acs"]
    assert (check.status, check.not_seen) == ("unknown", f"ACS: {reasons['acs']}")


@pytest.mark.parametrize(
    ("cupti", "may_profile", "container", "status", "step"),
    [
        (CuptiSeen(path="x", version=26), False, None, "ok", ""),
        (CuptiSeen(path="x", version=12), False, None, "blocked", "NVreg_RestrictProfilingToAdminUsers=0"),
        (CuptiSeen(path="x", version=12), True, None, "ok", ""),
        (CuptiSeen(path="x", error="CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"), False, "Docker", "warning", "--cap-add"),
        (CuptiSeen(path="x", error="CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"), False, None, "warning",
         "CUDA_INJECTION64_PATH"),
        (CuptiSeen(), False, None, "warning", "pip install nvidia-cuda-cupti"),
        (None, False, None, "unknown", ""),
    ],
)  # fmt: skip
def test_profiler_access_follows_cupti_errors_and_permissions(
    cupti: CuptiSeen | None, may_profile: bool, container: str | None, status: str, step: str
) -> None:
    facts = h200(container=container)
    check = checks(facts, surroundings(cupti=cupti, may_profile=may_profile))["profiler-access"]
    assert check.status == status
    assert any(step in fix for fix in check.fix) == bool(step)


@pytest.mark.parametrize(
    ("cuda", "driver_cuda", "status"),
    [("13.0", "13.0", "ok"), ("12.8", "12.4", "ok"), ("13.0", "12.8", "blocked"), (None, "12.8", "blocked")],
)
def test_framework_needs_the_major_cuda_version_of_the_driver(cuda: str | None, driver_cuda: str, status: str) -> None:
    python = msgspec.structs.replace(PYTHON, cuda=cuda)
    check = checks(h200(cuda_driver=driver_cuda), surroundings(python=python))["framework"]
    assert check.status == status
    if status == "blocked":
        assert check.fix[0].endswith("whl/cu126")


def test_small_or_full_shared_memory_has_a_fix() -> None:
    small = {"shm_bytes": 64 << 20, "shm_free_bytes": 64 << 20}
    check = checks(h200(**small, container="Docker"))["shared-memory"]
    assert check.status == "warning"
    assert "64 MiB, 64 MiB free" in check.title
    assert "--shm-size" in check.fix[0]
    assert "remount" in checks(h200(**small))["shared-memory"].fix[0]
    full = {"shm_bytes": 64 << 30, "shm_free_bytes": 1 << 20}
    assert "ended jobs" in checks(h200(**full))["shared-memory"].fix[0]


def test_locked_memory_matters_with_rdma_only() -> None:
    assert checks(h200(memlock_bytes=8 << 20))["locked-memory"].status == "not-needed"
    nics = (Nic(name="mlx5_0", kind="infiniband"),)
    check = checks(h200(memlock_bytes=8 << 20, nics=nics))["locked-memory"]
    assert (check.status, check.title[:15]) == ("warning", "Only 8 MiB may ")
    assert checks(h200(nics=nics))["locked-memory"].status == "ok"


def test_one_core_per_rank_is_a_warning() -> None:
    facts = h200(usable_cpus=4, environment={"SLURM_JOB_ID": "7"})
    check = checks(facts, surroundings(allowed_cpus="0-3"))["cpu-cores"]
    assert check.status == "warning"
    assert "this process may use 0-3: 1 per rank with 4 ranks" in check.title
    assert "--cpus-per-task" in check.fix[0]
    assert checks(facts, ranks=1)["cpu-cores"].status == "ok"
    limited = checks(h200(usable_cpus=4, container="Docker"), surroundings(cpu_quota=3.5))["cpu-cores"]
    assert "a control group allows 3.5 CPUs" in limited.title
    assert "--cpus=" in limited.fix[0]


def test_gpus_on_other_numa_nodes_than_the_process_are_a_warning() -> None:
    nodes = (NumaNode(index=0, cpus="0-31"), NumaNode(index=1, cpus="32-63"))
    facts = h200(numa=nodes)
    gpus = tuple(msgspec.structs.replace(gpu, numa_node=gpu.index // 2) for gpu in facts.gpus)
    facts = msgspec.structs.replace(facts, gpus=gpus)
    assert checks(facts)["numa-affinity"].status == "ok"
    check = checks(facts, surroundings(allowed_cpus="0-7"))["numa-affinity"]
    assert check.status == "warning"
    assert check.title.startswith("GPUs 2-3 are on other NUMA nodes than this process (node 0)")
    assert check.fix[0].startswith("numactl --cpunodebind=1 --membind=1")
    nowhere = msgspec.structs.replace(facts, gpus=tuple(msgspec.structs.replace(g, numa_node=None) for g in gpus))
    assert checks(nowhere)["numa-affinity"].status == "unknown"


def test_status_without_visible_gpus_depends_on_the_reason() -> None:
    def without(reason: str, **host: Any) -> Check:
        facts = h200(reasons={"gpus": reason}, **host)
        return checks(msgspec.structs.replace(facts, gpus=(), links=()))["gpu-driver"]

    assert without("none on the PCI bus; the driver lists none").status == "not-needed"
    check = without("PCI shows 4 NVIDIA GPUs (0000:3d:00.0), but no driver is installed", container="Docker")
    assert (check.status, check.fix[0]) == ("blocked", "docker run --gpus all …")
    facts = h200(reasons={"visible": "CUDA_VISIBLE_DEVICES is empty: CUDA programs see no GPU"})
    hidden = tuple(msgspec.structs.replace(gpu, visible=False) for gpu in facts.gpus)
    check = checks(msgspec.structs.replace(facts, gpus=hidden))["gpu-driver"]
    assert (check.status, check.fix) == ("blocked", ("unset CUDA_VISIBLE_DEVICES",))
    late = surroundings(reasons={"inventory": "the NVIDIA driver did not answer within 20 s"})
    assert checks(Facts(host=h200().host), late)["gpu-driver"].status == "blocked"


def test_findings_about_gpus_are_warnings() -> None:
    facts = h200()
    hot = (msgspec.structs.replace(facts.gpus[0], throttle_reasons=("thermal slowdown",)), *facts.gpus[1:])
    gpus: tuple[Gpu, ...] = tuple(hot)
    check = checks(msgspec.structs.replace(facts, gpus=gpus))["gpu-state"]
    assert check.status in {"ok", "warning"}
    slow = checks(machine("7gforce-v2"))["gpu-state"]
    assert slow.status == "warning"
    assert slow.fix[-1] == "gpudiag topology"


def test_variables_that_slow_training_down_are_a_warning() -> None:
    check = checks(h200(environment={"CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "INFO"}))["environment"]
    assert (check.status, check.fix) == ("warning", ("unset CUDA_LAUNCH_BLOCKING",))
    assert checks(h200(environment={"NCCL_P2P_DISABLE": "0"}))["environment"].status == "ok"


def test_missing_framework_or_broken_interpreter_is_blocked() -> None:
    missing = PythonSeen(
        path="p", framework_title="PyTorch", version="3.12.3", problem="p has no PyTorch", hint="Install it there."
    )
    found = checks(h200(), surroundings(python=missing))
    assert found["interpreter"].status == "ok"
    assert (found["framework"].status, found["framework"].fix) == ("blocked", ("Install it there.",))
    broken = PythonSeen(path="p", framework_title="PyTorch", problem="p cannot be run", hint="Give a Python.")
    found = checks(h200(), surroundings(python=broken))
    assert (found["interpreter"].status, found["framework"].status) == ("blocked", "unknown")


def test_windows_subsystem_for_linux_is_a_warning() -> None:
    assert checks(h200(), surroundings(wsl=True))["virtual-machine"].status == "warning"
