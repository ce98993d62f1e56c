"""Gather every GPU of the machine through NVML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpudiag.machine.inventory.gpus.nvlinks import nvlinks
from gpudiag.machine.inventory.gpus.nvml import INVALID_ARGUMENT, NvmlSession
from gpudiag.machine.inventory.gpus.processes import gpu_processes
from gpudiag.machine.inventory.host.kernel_files import numbers_in_mask
from gpudiag.machine.inventory.host.pci import numa_node, pci_id_of
from gpudiag.model.facts import Clock, Gpu, MigInstance, PcieLink, number_list
from gpudiag.model.throttle import reasons_in_words

# Arguments of NVML functions (nvml.h). The SM clock follows the graphics clock, for which application clocks are set.
_GRAPHICS_CLOCK = 0
_SM_CLOCK = 1
_MEMORY_CLOCK = 2
_CORE_TEMPERATURE = 0
_SLOWDOWN_THRESHOLD = 1
_UNCORRECTED = 1
_VOLATILE = 0
_NODE_SCOPE = 0
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
#: Number of 64-bit words requested for a CPU set, enough for 1024 CPUs.
_AFFINITY_WORDS = 16


class _GpuQuery:
    """Query one GPU. If a field has no value, `reasons[field]` explains why."""

    def __init__(self, session: NvmlSession, handle: Any, root: Path) -> None:
        self.session, self.handle, self.root = session, handle, root
        self.reasons: dict[str, str] = {}

    def ask(self, field: str, function: str | tuple[str, ...], *arguments: Any) -> Any | None:
        return self.session.ask(self.reasons, field, function, self.handle, *arguments)

    def clock(self, field: str, domain: int, application_domain: int) -> Clock:
        return Clock(
            current_mhz=self.ask(f"{field}.current_mhz", "nvmlDeviceGetClockInfo", domain),
            maximum_mhz=self.ask(f"{field}.maximum_mhz", "nvmlDeviceGetMaxClockInfo", domain),
            application_mhz=self.ask(f"{field}.application_mhz", "nvmlDeviceGetApplicationsClock", application_domain),
        )

    def pcie(self) -> PcieLink:
        return PcieLink(
            generation=self.ask("pcie.generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
            width=self.ask("pcie.width", "nvmlDeviceGetCurrPcieLinkWidth"),
            maximum_generation=self.ask("pcie.maximum_generation", "nvmlDeviceGetMaxPcieLinkGeneration"),
            maximum_width=self.ask("pcie.maximum_width", "nvmlDeviceGetMaxPcieLinkWidth"),
        )

    def watts(self, field: str, function: str | tuple[str, ...]) -> float | None:
        milliwatts = self.ask(field, function)
        return None if milliwatts is None else milliwatts / 1000

    def flag(self, field: str, function: str | tuple[str, ...]) -> bool | None:
        answer = self.ask(field, function)
        if answer is None:
            return None
        # For ECC and MIG the answer is a pair: the current and the pending mode.
        return bool(answer[0] if isinstance(answer, (list, tuple)) else answer)

    def throttle_reasons(self) -> tuple[str, ...]:
        bits = self.ask(
            "throttle_reasons",
            ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
        )
        return () if bits is None else reasons_in_words(bits)

    def cpu_affinity(self) -> str | None:
        """Return the CPUs near the GPU as a list such as `0-31`; None if the driver does not know them."""
        words = self.ask("cpu_affinity", "nvmlDeviceGetCpuAffinity", _AFFINITY_WORDS)
        if words is None:
            return None
        text = number_list(numbers_in_mask(list(words)))
        if not text:
            self.reasons["cpu_affinity"] = "the driver lists no CPU"
        return text or None

    def numa_node(self, pci_id: str | None) -> int | None:
        """Return the GPU's NUMA node from sysfs, or else from NVML."""
        node = numa_node(self.root, pci_id) if pci_id is not None else None
        if node is not None:
            return node
        words = self.ask("numa_node", "nvmlDeviceGetMemoryAffinity", 1, _NODE_SCOPE)
        nodes = numbers_in_mask(list(words)) if words is not None else ()
        if len(nodes) == 1:  # a driver that does not know the node lists several nodes
            return nodes[0]
        self.reasons["numa_node"] = "neither the firmware nor the driver reports the node of this GPU"
        return None

    def compute_capability(self) -> tuple[int, int] | None:
        answer = self.ask("compute_capability", "nvmlDeviceGetCudaComputeCapability")
        return None if answer is None else (int(answer[0]), int(answer[1]))

    def mig_instances(self) -> tuple[MigInstance, ...]:
        """Return the MIG instances of the GPU; empty slots are omitted."""
        count = self.ask("mig_instances", "nvmlDeviceGetMaxMigDeviceCount") or 0
        instances = []
        for position in range(count):
            handle = self.session.ask({}, "mig", "nvmlDeviceGetMigDeviceHandleByIndex", self.handle, position)
            if handle is None:  # an unused slot
                continue
            memory = self.session.ask({}, "memory", "nvmlDeviceGetMemoryInfo", handle)
            instances.append(
                MigInstance(
                    uuid=self.session.ask({}, "uuid", "nvmlDeviceGetUUID", handle),
                    name=self.session.ask({}, "name", "nvmlDeviceGetName", handle),
                    memory_bytes=None if memory is None else int(memory.total),
                )
            )
        return tuple(instances)


def _gpu(session: NvmlSession, handle: Any, index: int, root: Path) -> Gpu:
    """Query all properties of one GPU."""
    query = _GpuQuery(session, handle, root)
    ask, reasons = query.ask, query.reasons
    name = ask("name", "nvmlDeviceGetName")
    pci_id = pci_id_of(ask("pci_id", "nvmlDeviceGetPciInfo"))
    memory = ask("memory_bytes", "nvmlDeviceGetMemoryInfo")
    if memory is None:
        reasons["memory_used_bytes"] = reasons["memory_bytes"]
    mode = ask("compute_mode", "nvmlDeviceGetComputeMode")
    mig = query.flag("mig", "nvmlDeviceGetMigMode")
    ecc = query.flag("ecc", "nvmlDeviceGetEccMode")
    uncorrected = None
    if ecc:
        uncorrected = ask("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE)
    else:
        reasons["ecc_uncorrected"] = "ECC is off" if ecc is False else reasons["ecc"]
    return Gpu(
        index=index,
        name=name or "unknown GPU",
        uuid=ask("uuid", "nvmlDeviceGetUUID"),
        pci_id=pci_id,
        compute_capability=query.compute_capability(),
        memory_bytes=None if memory is None else int(memory.total),
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_bus_bits=ask("memory_bus_bits", "nvmlDeviceGetMemoryBusWidth"),
        sm_clock=query.clock("sm_clock", _SM_CLOCK, _GRAPHICS_CLOCK),
        memory_clock=query.clock("memory_clock", _MEMORY_CLOCK, _MEMORY_CLOCK),
        throttle_reasons=query.throttle_reasons(),
        power_watts=query.watts("power_watts", "nvmlDeviceGetPowerUsage"),
        power_limit_watts=query.watts(
            "power_limit_watts", ("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit")
        ),
        temperature_c=ask(
            "temperature_c", ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV1"), _CORE_TEMPERATURE
        ),
        temperature_limit_c=ask("temperature_limit_c", "nvmlDeviceGetTemperatureThreshold", _SLOWDOWN_THRESHOLD),
        ecc=ecc,
        ecc_uncorrected=uncorrected,
        mig=mig,
        mig_instances=query.mig_instances() if mig else (),
        compute_mode=_COMPUTE_MODES.get(mode, f"mode {mode}") if mode is not None else None,
        persistence=query.flag("persistence", "nvmlDeviceGetPersistenceMode"),
        pcie=query.pcie(),
        nvlinks=nvlinks(session, handle, reasons),
        numa_node=query.numa_node(pci_id),
        cpu_affinity=query.cpu_affinity(),
        processes=gpu_processes(session, handle, root, reasons),
        reasons=reasons,
    )


def gather_gpus(session: NvmlSession, root: Path, reasons: dict[str, str]) -> tuple[tuple[Gpu, ...], tuple[Any, ...]]:
    """Return all GPUs and their NVML handles, in NVML's order, which is by PCI address.

    The handle of a GPU that cannot be opened is None.

    Args:
        session: NVML.
        root: the file system from which /sys and /proc are read.
        reasons: `reasons["gpus"]` is set if the GPUs cannot be counted.
    """
    count = session.ask(reasons, "gpus", "nvmlDeviceGetCount")
    gpus: list[Gpu] = []
    handles: list[Any] = []
    for index in range(count or 0):
        gpu_reasons: dict[str, str] = {}
        handle = session.ask(gpu_reasons, "gpu", "nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            if session.last_code == INVALID_ARGUMENT:  # the GPU disappeared after the count
                continue
            gpus.append(Gpu(index=index, name="unreadable GPU", reasons=gpu_reasons))
        else:
            gpus.append(_gpu(session, handle, index, root))
        handles.append(handle)
    return tuple(gpus), tuple(handles)
