"""Define facts about a machine: its hardware and the measured speed of its links (`facts.json`, `gpudiag/facts/1`).

Every rate has a direction and a unit. If a rate has an upper limit, this ceiling and its source are stored beside it. A
value that could not be read is None (null), and `reasons` of the same object says why.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from gpudiag.model.analysis import Finding
from gpudiag.model.quantities import Bytes, Count, Devices, Difference, Microseconds, Number, Ordinal, Rate

FACTS_SCHEMA = "gpudiag/facts/1"
QUEUED = "-queued"
"""Suffix of a transport's name if its collectives were measured without launch time."""


def nccl_transport(*, p2p: bool = True) -> str:
    """Return the transport of NCCL's collectives, with or without peer access between GPUs."""
    return "nccl" if p2p else "nccl-no-p2p"


_MOST_CPUS = 65536

LinkKind = str
"""`NV<lanes>`, `PIX`, `PXB`, `PHB`, `NODE`, `SYS` as nvidia-smi names them, or `unknown`."""


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """A clock domain in MHz."""

    current_mhz: Count | None = None
    maximum_mhz: Count | None = None
    application_mhz: Count | None = None


class PcieLink(msgspec.Struct, frozen=True, kw_only=True):
    """PCI Express link of a device. Idle links lower their generation, so `generation` counts only if `under_load`."""

    generation: Count | None = None
    width: Count | None = None
    maximum_generation: Count | None = None
    maximum_width: Count | None = None
    under_load: bool = False


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process with a context on a GPU. `own` marks gpudiag's processes and their ancestors."""

    pid: Count
    name: str | None = None
    memory_bytes: Bytes | None = None
    own: bool = False


class NvLink(msgspec.Struct, frozen=True, kw_only=True):
    """An NVLink lane, with its one-way rate and the PCI id of its far end (`remote`)."""

    lane: Count
    active: bool
    version: Count | None = None
    gb_per_s: Rate | None = None
    remote: str | None = None
    remote_kind: Literal["gpu", "switch", "cpu", "unknown"] = "unknown"


class MigInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A slice of a GPU in MIG mode, which CUDA programs see as a separate device."""

    uuid: str | None = None
    name: str | None = None
    memory_bytes: Bytes | None = None


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU, as NVML describes it.

    Attributes:
        cpu_affinity: CPU list, e.g. `0-15,32-47`.
        visible: False if CUDA_VISIBLE_DEVICES hides the GPU from training processes.
    """

    index: Ordinal
    name: str
    uuid: str | None = None
    pci_id: str | None = None
    compute_capability: tuple[Count, Count] | None = None
    memory_bytes: Bytes | None = None
    memory_used_bytes: Bytes | None = None
    memory_bus_bits: Count | None = None
    sm_clock: Clock = Clock()
    memory_clock: Clock = Clock()
    throttle_reasons: tuple[str, ...] = ()
    power_watts: Rate | None = None
    power_limit_watts: Rate | None = None
    temperature_c: Number | None = None
    temperature_limit_c: Number | None = None
    ecc: bool | None = None
    ecc_uncorrected: Count | None = None
    mig: bool | None = None
    mig_instances: tuple[MigInstance, ...] = ()
    compute_mode: str | None = None
    persistence: bool | None = None
    pcie: PcieLink = PcieLink()
    nvlinks: tuple[NvLink, ...] = ()
    numa_node: Number | None = None
    cpu_affinity: str | None = None
    processes: tuple[GpuProcess, ...] = ()
    visible: bool = True
    reasons: dict[str, str] = {}


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The path between two GPUs with indices a < b. If peer access is denied, `reason` is NVML's reason."""

    a: Ordinal
    b: Ordinal
    kind: LinkKind
    lanes: Count = 0
    peer_access: bool | None = None
    reason: str | None = None


class Nic(msgspec.Struct, frozen=True, kw_only=True):
    """A network or RDMA device and its distance to each GPU (index → `PIX`, `PHB`, `NODE`, `SYS`, `unknown`)."""

    name: str
    kind: Literal["ethernet", "infiniband", "roce", "other"]
    pci_id: str | None = None
    numa_node: Number | None = None
    speed_gb_per_s: Rate | None = None
    distance: dict[str, str] = {}


class NumaNode(msgspec.Struct, frozen=True, kw_only=True):
    """A NUMA node."""

    index: Ordinal
    cpus: str
    memory_bytes: Bytes | None = None


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The host.

    Attributes:
        usable_cpus: number of CPUs that this process may use (affinity and cgroup quota).
        memlock_bytes: limit of locked memory; -1 for unlimited.
        environment: NCCL_*, CUDA_*, and a few other variables that change how training communicates.
    """

    name: str = ""
    os: str = ""
    kernel: str = ""
    cpu: str = ""
    sockets: Count | None = None
    cores: Count | None = None
    threads: Count | None = None
    usable_cpus: Count | None = None
    numa: tuple[NumaNode, ...] = ()
    memory_bytes: Bytes | None = None
    driver: str | None = None
    cuda_driver: str | None = None
    iommu: str | None = None
    acs: str | None = None
    container: str | None = None
    hypervisor: str | None = None
    shm_bytes: Bytes | None = None
    shm_free_bytes: Bytes | None = None
    memlock_bytes: Number | None = None
    environment: dict[str, str] = {}
    nics: tuple[Nic, ...] = ()
    reasons: dict[str, str] = {}


class Bandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """A measured copy path.

    Attributes:
        path: `host_to_device`, `device_to_host`, `device_to_device`, `peer` or `host_memory`.
        src, dst: `host`, `numa:<i>`, `gpu:<i>`, or `all` for all GPUs at once.
        direction: `one_way`, or `both_ways` for the sum of both directions at once.
        initiator: for copies between GPUs, the side that issues the copy: `src` for a write, `dst` for a read.
        gb_per_s: median rate; for `all` GPUs, the sum of `per_device`.
        cv: coefficient of variation over the repeats.
        verified: whether every byte arrived as sent; None if not checked.
    """

    path: str
    src: str
    dst: str
    memory: Literal["pinned", "pageable", "device"]
    direction: Literal["one_way", "both_ways"]
    peer_access: bool | None = None
    initiator: Literal["src", "dst"] | None = None
    size_bytes: Bytes
    gb_per_s: Rate
    per_device: dict[str, Rate] = {}
    ceiling_gb_per_s: Rate | None = None
    ceiling_source: str | None = None
    cv: Rate | None = None
    repeats: Count = 0
    verified: bool | None = None


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """A measured latency: `kind` is `small_copy` or `dependent_load`."""

    kind: str
    src: str
    dst: str
    time_us: Microseconds
    peer_access: bool | None = None
    cv: Rate | None = None


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """A measured collective: time and bandwidth by the nccl-tests convention.

    `strategy` names the transport: `nccl`, `nccl-no-p2p`, `nccl-ring`, `nccl-tree`, `gloo`, `host-staged`. `time_us` is
    the time of a call if one host thread launches calls back to back for all GPUs, as nccl-tests does. With the suffix
    `-queued`, `time_us` is the device time: calls are launched ahead, held back until all are queued, and timed by the
    GPUs. Collectives that a training step launches well ahead take this device time. Queued calls are measured only for
    small sizes, because queueing does not change the time of large calls.
    """

    operation: str
    strategy: str
    ranks: Devices
    bytes: Bytes
    time_us: Microseconds
    algbw_gb_per_s: Rate
    busbw_gb_per_s: Rate
    cv: Rate | None = None
    verified: bool | None = None


class CollectiveFit(msgspec.Struct, frozen=True, kw_only=True):
    """time_us = latency_us + bytes * factor / busbw, fitted to the measured sizes of one transport.

    `factor` is the ratio of bus bandwidth to algorithm bandwidth in nccl-tests, for instance 2 (n - 1) / n of an
    all-reduce of n ranks.
    """

    operation: str
    strategy: str
    ranks: Devices
    latency_us: Microseconds
    busbw_gb_per_s: Rate
    worst_relative_error: Difference


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement that was not made (`what`), and the reason (`why`)."""

    what: str
    why: str


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All facts about a machine. `probes` has each probe's duration in seconds, and versions of libraries."""

    schema: str = FACTS_SCHEMA
    created: str = ""
    version: str = ""
    host: Host
    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    islands: tuple[tuple[Ordinal, ...], ...] = ()
    bandwidth: tuple[Bandwidth, ...] = ()
    latency: tuple[Latency, ...] = ()
    collectives: tuple[Collective, ...] = ()
    collective_fits: tuple[CollectiveFit, ...] = ()
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    probes: dict[str, Any] = {}


def number_list(numbers: Iterable[int]) -> str:
    """Return numbers in the Linux kernel's list notation, with ranges; "" for no numbers.

    >>> number_list([8, 0, 1, 3, 2])
    '0-3,8'
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the numbers of a list in the kernel's notation, such as `0-3,8`, in order.

    Raises:
        ValueError: the text is not such a list, or one of its numbers is 65536 or more.
    """
    numbers: set[int] = set()
    for span in filter(None, (span.strip() for span in text.strip().split(","))):
        first, _, last = span.partition("-")
        low, high = int(first), int(last or first)
        if not 0 <= low <= high < _MOST_CPUS:
            raise ValueError(f"not a CPU list: {text!r}")
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))
