"""Fake NVML with the answers of a recorded machine: the functions that gpudiag calls return values of `Facts`.

The fake replaces the module `pynvml` in `gpudiag.machine.inventory.gpus.nvml`. Error classes and constants are
pynvml's, so a refused call raises the same exception as with a real driver.
"""
# ruff: noqa: N802, N815  # the names are NVML's

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pynvml

from gpudiag.model import throttle
from gpudiag.model.facts import Facts, Gpu, GpuProcess, Link

if TYPE_CHECKING:
    from collections.abc import Callable

_LEVELS = {"PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}
_VERSIONS = {1: 1, 2: 2, 3: 4, 4: 6, 5: 7}
_REMOTE = {"gpu": 0, "cpu": 1, "switch": 2, "unknown": 255}
_MODES = {"default": 0, "prohibited": 2, "exclusive process": 3}


def refusal(code: int) -> Exception:
    """Return pynvml's exception for a return code of NVML."""
    return pynvml.NVMLError(code)  # type: ignore[no-any-return]  # pynvml has no types


class FakeNvml:
    """A driver that answers with values of a recorded machine.

    Args:
        facts: the recorded machine.
        refuse: function, or (function, GPU index) → return code of NVML with which its calls fail.
        missing: functions that the installed binding lacks.
        p2p_status: (GPU index, GPU index) → NVML's status of a pair without peer access.
    """

    def __init__(
        self,
        facts: Facts,
        refuse: dict[Any, int] | None = None,
        missing: tuple[str, ...] = (),
        p2p_status: dict[tuple[int, int], int] | None = None,
    ) -> None:
        self.facts = facts
        self.refuse = refuse or {}
        self.missing = missing
        self.p2p_status = p2p_status or {}
        self.opened = 0
        self.asked: list[str] = []
        self.NVMLError = pynvml.NVMLError

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml") or name in self.missing or not hasattr(_Answers, name):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            """Answer or refuse a call as the driver would, and record its name. Values that are not recorded (None) are
            refused as not supported."""
            self.asked.append(name)
            index = next((a.index for a in arguments if isinstance(a, Gpu)), arguments[0] if arguments else None)
            for key in (name, (name, index)):
                if key in self.refuse:
                    raise refusal(self.refuse[key])
            if name not in {"nvmlInit", "nvmlShutdown"}:
                assert self.opened == 1, f"{name} called while NVML is not open"
            answer = getattr(_Answers, name)(self, *arguments)
            if answer is None and name not in {"nvmlInit", "nvmlShutdown"}:
                raise refusal(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return answer

        return call

    def link(self, a: Gpu, b: Gpu) -> Link:
        pair = (min(a.index, b.index), max(a.index, b.index))
        return next(link for link in self.facts.links if (link.a, link.b) == pair)


class _Answers:
    """One static method per NVML function; the handles are the recorded GPUs."""

    @staticmethod
    def nvmlInit(fake: FakeNvml) -> None:
        fake.opened += 1

    @staticmethod
    def nvmlShutdown(fake: FakeNvml) -> None:
        fake.opened -= 1

    @staticmethod
    def nvmlSystemGetDriverVersion(fake: FakeNvml) -> str | None:
        return fake.facts.host.driver

    @staticmethod
    def nvmlSystemGetCudaDriverVersion_v2(fake: FakeNvml) -> int | None:
        if fake.facts.host.cuda_driver is None:
            return None
        major, minor = fake.facts.host.cuda_driver.split(".")
        return int(major) * 1000 + int(minor) * 10

    @staticmethod
    def nvmlSystemGetProcessName(fake: FakeNvml, pid: int) -> str | None:
        return next((p.name for gpu in fake.facts.gpus for p in gpu.processes if p.pid == pid), None)

    @staticmethod
    def nvmlDeviceGetCount(fake: FakeNvml) -> int:
        return len(fake.facts.gpus)

    @staticmethod
    def nvmlDeviceGetHandleByIndex(fake: FakeNvml, index: int) -> Gpu:
        return fake.facts.gpus[index]

    @staticmethod
    def nvmlDeviceGetName(fake: FakeNvml, gpu: Any) -> str | None:
        return gpu.name  # type: ignore[no-any-return]  # a GPU or a MIG instance

    @staticmethod
    def nvmlDeviceGetUUID(fake: FakeNvml, gpu: Any) -> str | None:
        return gpu.uuid  # type: ignore[no-any-return]  # a GPU or a MIG instance

    @staticmethod
    def nvmlDeviceGetPciInfo(fake: FakeNvml, gpu: Gpu) -> Any:
        if gpu.pci_id is None:
            return None
        domain, rest = gpu.pci_id.split(":", 1)
        return SimpleNamespace(busId=f"{int(domain, 16):08X}:{rest.upper()}")

    @staticmethod
    def nvmlDeviceGetCudaComputeCapability(fake: FakeNvml, gpu: Gpu) -> Any:
        return gpu.compute_capability

    @staticmethod
    def nvmlDeviceGetMemoryInfo(fake: FakeNvml, gpu: Any) -> Any:
        used = getattr(gpu, "memory_used_bytes", None) or 0
        return None if gpu.memory_bytes is None else SimpleNamespace(total=gpu.memory_bytes, used=used)

    @staticmethod
    def nvmlDeviceGetMemoryBusWidth(fake: FakeNvml, gpu: Gpu) -> int | None:
        return gpu.memory_bus_bits

    @staticmethod
    def _clock(gpu: Gpu, domain: int) -> Any:
        return {0: gpu.sm_clock, 1: gpu.sm_clock, 2: gpu.memory_clock}[domain]

    @staticmethod
    def nvmlDeviceGetClockInfo(fake: FakeNvml, gpu: Gpu, domain: int) -> Any:
        return _Answers._clock(gpu, domain).current_mhz

    @staticmethod
    def nvmlDeviceGetMaxClockInfo(fake: FakeNvml, gpu: Gpu, domain: int) -> Any:
        return _Answers._clock(gpu, domain).maximum_mhz

    @staticmethod
    def nvmlDeviceGetApplicationsClock(fake: FakeNvml, gpu: Gpu, domain: int) -> Any:
        return _Answers._clock(gpu, domain).application_mhz

    @staticmethod
    def nvmlDeviceGetCurrentClocksEventReasons(fake: FakeNvml, gpu: Gpu) -> int:
        return sum(bit for bit, words in throttle.REASONS_BY_BIT.items() if words in gpu.throttle_reasons)

    nvmlDeviceGetCurrentClocksThrottleReasons = nvmlDeviceGetCurrentClocksEventReasons

    @staticmethod
    def nvmlDeviceGetUtilizationRates(fake: FakeNvml, gpu: Gpu) -> Any:
        return SimpleNamespace(gpu=90 + gpu.index, memory=0)

    @staticmethod
    def nvmlDeviceGetPowerUsage(fake: FakeNvml, gpu: Gpu) -> int | None:
        return None if gpu.power_watts is None else round(gpu.power_watts * 1000)

    @staticmethod
    def nvmlDeviceGetEnforcedPowerLimit(fake: FakeNvml, gpu: Gpu) -> int | None:
        return None if gpu.power_limit_watts is None else round(gpu.power_limit_watts * 1000)

    @staticmethod
    def nvmlDeviceGetTemperature(fake: FakeNvml, gpu: Gpu, sensor: int) -> int | None:
        return gpu.temperature_c

    @staticmethod
    def nvmlDeviceGetTemperatureThreshold(fake: FakeNvml, gpu: Gpu, threshold: int) -> int | None:
        return gpu.temperature_limit_c

    @staticmethod
    def nvmlDeviceGetEccMode(fake: FakeNvml, gpu: Gpu) -> Any:
        return None if gpu.ecc is None else [int(gpu.ecc), int(gpu.ecc)]

    @staticmethod
    def nvmlDeviceGetTotalEccErrors(fake: FakeNvml, gpu: Gpu, kind: int, counter: int) -> int | None:
        return gpu.ecc_uncorrected

    @staticmethod
    def nvmlDeviceGetMigMode(fake: FakeNvml, gpu: Gpu) -> Any:
        return None if gpu.mig is None else [int(gpu.mig), int(gpu.mig)]

    @staticmethod
    def nvmlDeviceGetMaxMigDeviceCount(fake: FakeNvml, gpu: Gpu) -> int:
        return 7

    @staticmethod
    def nvmlDeviceGetMigDeviceHandleByIndex(fake: FakeNvml, gpu: Gpu, position: int) -> Any:
        if position >= len(gpu.mig_instances):
            raise refusal(pynvml.NVML_ERROR_NOT_FOUND)
        return gpu.mig_instances[position]

    @staticmethod
    def nvmlDeviceGetComputeMode(fake: FakeNvml, gpu: Gpu) -> int | None:
        return None if gpu.compute_mode is None else _MODES[gpu.compute_mode]

    @staticmethod
    def nvmlDeviceGetPersistenceMode(fake: FakeNvml, gpu: Gpu) -> int | None:
        return None if gpu.persistence is None else int(gpu.persistence)

    @staticmethod
    def nvmlDeviceGetCurrPcieLinkGeneration(fake: FakeNvml, gpu: Gpu) -> int | None:
        return gpu.pcie.generation

    @staticmethod
    def nvmlDeviceGetCurrPcieLinkWidth(fake: FakeNvml, gpu: Gpu) -> int | None:
        return gpu.pcie.width

    @staticmethod
    def nvmlDeviceGetMaxPcieLinkGeneration(fake: FakeNvml, gpu: Gpu) -> int | None:
        return gpu.pcie.maximum_generation

    @staticmethod
    def nvmlDeviceGetMaxPcieLinkWidth(fake: FakeNvml, gpu: Gpu) -> int | None:
        return gpu.pcie.maximum_width

    @staticmethod
    def nvmlDeviceGetNvLinkState(fake: FakeNvml, gpu: Gpu, lane: int) -> int:
        if lane >= len(gpu.nvlinks):
            raise refusal(pynvml.NVML_ERROR_INVALID_ARGUMENT if gpu.nvlinks else pynvml.NVML_ERROR_NOT_SUPPORTED)
        return int(gpu.nvlinks[lane].active)

    @staticmethod
    def nvmlDeviceGetNvLinkVersion(fake: FakeNvml, gpu: Gpu, lane: int) -> int | None:
        version = gpu.nvlinks[lane].version
        return None if version is None else _VERSIONS[version]

    @staticmethod
    def nvmlDeviceGetNvLinkRemoteDeviceType(fake: FakeNvml, gpu: Gpu, lane: int) -> int:
        return _REMOTE[gpu.nvlinks[lane].remote_kind]

    @staticmethod
    def nvmlDeviceGetNvLinkRemotePciInfo(fake: FakeNvml, gpu: Gpu, lane: int) -> Any:
        remote = gpu.nvlinks[lane].remote
        return None if remote is None else SimpleNamespace(busId=f"0000{remote.upper()}".encode())

    @staticmethod
    def nvmlDeviceGetFieldValues(fake: FakeNvml, gpu: Gpu, fields: list[Any]) -> Any:
        rate = gpu.nvlinks[fields[0][1]].gb_per_s
        value = SimpleNamespace(uiVal=0 if rate is None else round(rate * 1000))
        return [SimpleNamespace(nvmlReturn=0, value=value), SimpleNamespace(nvmlReturn=3, value=value)]

    @staticmethod
    def nvmlDeviceGetMemoryAffinity(fake: FakeNvml, gpu: Gpu, size: int, scope: int) -> Any:
        return None if gpu.numa_node is None else [1 << gpu.numa_node] + [0] * (size - 1)

    @staticmethod
    def nvmlDeviceGetCpuAffinity(fake: FakeNvml, gpu: Gpu, size: int) -> Any:
        if gpu.cpu_affinity is None:
            return None
        words = [0] * size  # a mask of CPUs in words of 64 bits
        for part in gpu.cpu_affinity.split(","):
            low, _, high = part.partition("-")
            for cpu in range(int(low), int(high or low) + 1):
                words[cpu // 64] |= 1 << cpu % 64
        return words

    @staticmethod
    def _processes(processes: tuple[GpuProcess, ...]) -> Any:
        return [SimpleNamespace(pid=p.pid, usedGpuMemory=p.memory_bytes) for p in processes]

    @staticmethod
    def nvmlDeviceGetComputeRunningProcesses_v3(fake: FakeNvml, gpu: Gpu) -> Any:
        return _Answers._processes(gpu.processes)

    nvmlDeviceGetComputeRunningProcesses_v2 = nvmlDeviceGetComputeRunningProcesses_v3

    @staticmethod
    def nvmlDeviceGetGraphicsRunningProcesses_v3(fake: FakeNvml, gpu: Gpu) -> Any:
        # A desktop program has a compute and a graphics context, so the driver lists it twice.
        return _Answers._processes(gpu.processes[:1])

    @staticmethod
    def nvmlDeviceGetTopologyCommonAncestor(fake: FakeNvml, a: Gpu, b: Gpu) -> int | None:
        return _LEVELS.get(fake.link(a, b).kind)

    @staticmethod
    def nvmlDeviceGetP2PStatus(fake: FakeNvml, a: Gpu, b: Gpu, capability: int) -> int | None:
        link = fake.link(a, b)
        if capability == 2:  # NVLink; status 0 is OK, 2 and 5 are reasons why not
            return 0 if link.lanes else 5
        if link.peer_access is None:
            return None
        return 0 if link.peer_access else fake.p2p_status.get((link.a, link.b), 2)
