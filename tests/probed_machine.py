"""Provide a machine with four GPUs and the output of all its probes, with values of a real machine (4 x H200)."""

from __future__ import annotations

import itertools
from pathlib import Path

from gpudiag.machine.probes.assemble import assemble
from gpudiag.machine.probes.programs import (
    CollectivesResult,
    HostCopies,
    HostCopy,
    HostLatency,
    HostMemoryCopy,
    HostMemoryResult,
    MeasuredCollective,
    PciePair,
    PeerCopies,
    PeerCopy,
    PeerLatency,
    ProbedGpu,
    ProbeDocument,
    ProbeFailure,
)
from gpudiag.machine.probes.runner import Planned, ProbeOutcome
from gpudiag.model.facts import Clock, Facts, Gpu, Host, Link, NvLink, PcieLink, Skipped

COUNT = 4
MIB = 1 << 20


def inventory(count: int = COUNT) -> Facts:
    """Return the inventory before any measurement, with idle PCIe links at generation 1."""
    lanes = tuple(NvLink(lane=lane, active=True, version=4, gb_per_s=26.562) for lane in range(18))
    gpus = tuple(
        Gpu(
            index=i,
            name="NVIDIA H200",
            pci_id=f"00000000:00:{6 + i:02X}.0",
            memory_clock=Clock(current_mhz=3201, maximum_mhz=3201),
            pcie=PcieLink(generation=1, width=16, maximum_generation=5, maximum_width=16),
            nvlinks=lanes,
        )
        for i in range(count)
    )
    links = tuple(
        Link(a=a, b=b, kind="NV18", lanes=18, peer_access=True) for a, b in itertools.combinations(range(count), 2)
    )
    host = Host(name="node1", driver="580.159.04", cuda_driver="13.0")
    return Facts(created="2026-01-02T03:04:05+00:00", host=host, gpus=gpus, links=links)


def probed_gpus(count: int = COUNT) -> tuple[ProbedGpu, ...]:
    """Return GPUs in CUDA's order, which reverses NVML's order here."""
    return tuple(
        ProbedGpu(
            ordinal=i,
            pci_id=f"0000:00:{6 + count - 1 - i:02x}.0",
            name="NVIDIA H200",
            memory_bus_bits=6144,
            pcie_under_load=PciePair(generation=5, width=16),
        )
        for i in range(count)
    )


def host_copies(count: int = COUNT) -> HostCopies:
    """Return the results of copies to, from and within the GPUs."""
    # GB/s of one GPU, per direction
    alone = {
        ("pinned", "host_to_device", "one_way"): (55.57,),
        ("pinned", "device_to_host", "one_way"): (55.44,),
        ("pinned", "host_to_device", "both_ways"): (52.4, 50.1),
        ("pageable", "host_to_device", "one_way"): (10.2,),
        ("pageable", "device_to_host", "one_way"): (19.1,),
        ("pageable", "host_to_device", "both_ways"): (6.0, 9.0),
    }
    bandwidth = []
    for (memory, path, direction), rates in alone.items():
        for group in [(i,) for i in range(count)] + [tuple(range(count))]:
            share = 1.0 if len(group) == 1 else 0.71  # all GPUs at once copy more slowly
            each = tuple(rate * share for _ in group for rate in rates)
            bandwidth.append(
                HostCopy(
                    path=path,
                    memory=memory,
                    direction=direction,
                    gpus=tuple(i for i in group for _ in rates),
                    gb_per_s=sum(each),
                    each_gb_per_s=each,
                    size_bytes=256 * MIB,
                    cv=0.001,
                    repeats=4,
                    wrong_words=0,
                )
            )
    bandwidth += [
        HostCopy(
            path="device_to_device",
            memory="device",
            direction="one_way",
            gpus=(i,),
            gb_per_s=2093.0,
            each_gb_per_s=(2093.0,),
            size_bytes=512 * MIB,
            cv=0.002,
            repeats=4,
            wrong_words=0,
        )
        for i in range(count)
    ]
    latency = [
        HostLatency(kind=kind, src=src, dst=dst, gpu=i, time_us=time_us + i / 1000, cv=0.01)
        for i in range(count)
        for kind, src, dst, time_us in (
            ("small_copy", "host", "gpu", 1.9),
            ("small_copy", "gpu", "host", 1.8),
            ("dependent_load", "gpu", "host", 1.163),
            ("dependent_load", "gpu", "gpu", 0.61),
        )
    ]
    return HostCopies(
        schema="gpudiag/probe-copy-host/1",
        gpus=probed_gpus(count),
        bandwidth=tuple(bandwidth),
        latency=tuple(latency),
        errors=(ProbeFailure(what="latency of a small copy, GPU 9", why="made up"),),
        versions={"cuda_driver": "13.0"},
    )


def peer_copies(count: int = COUNT) -> PeerCopies:
    """Return the results of copies between every two GPUs."""
    bandwidth = []
    for a, b in itertools.permutations(range(count), 2):
        paths = [(394.1, "one_way", "dst", True), (396.4, "one_way", "src", True), (31.2, "one_way", "src", False)]
        if a < b:
            paths += [(778.8, "both_ways", "dst", True), (44.0, "both_ways", "src", False)]
        bandwidth += [
            PeerCopy(
                src=a,
                dst=b,
                direction=direction,
                initiator=initiator,
                peer_access=access,
                gb_per_s=rate,
                size_bytes=512 * MIB,
                cv=0.001,
                repeats=4,
                wrong_words=0,
            )
            for rate, direction, initiator, access in paths
        ]
    latency = tuple(
        PeerLatency(kind=kind, src=a, dst=b, peer_access=access, time_us=time_us, cv=0.01)
        for a, b in itertools.permutations(range(count), 2)
        for kind, access, time_us in (
            ("small_copy", False, 14.0),
            ("small_copy", True, 2.1),
            ("dependent_load", True, 0.828),
        )
    )
    return PeerCopies(
        schema="gpudiag/probe-copy-peer/1", gpus=probed_gpus(count), bandwidth=tuple(bandwidth), latency=latency
    )


def host_memory() -> HostMemoryResult:
    """Return the result for the host memory of one NUMA node."""
    copy = HostMemoryCopy(
        src="numa:0", dst="numa:0", size_bytes=512 * MIB, threads=32, gb_per_s=112.0, cv=0.004, repeats=3, wrong_words=0
    )
    return HostMemoryResult(schema="gpudiag/probe-host-memory/1", bandwidth=(copy,))


def collectives(*strategies: tuple[str, float, float], count: int = COUNT) -> CollectivesResult:
    """Return results of collectives at all powers of 2; a strategy is (name, latency in µs, bus bandwidth in GB/s)."""
    factor = 2 * (count - 1) / count
    return CollectivesResult(
        schema="gpudiag/probe-allreduce/1",
        gpus=probed_gpus(count),
        collectives=tuple(
            MeasuredCollective(
                operation="all_reduce",
                strategy=name,
                ranks=count,
                bytes=1 << power,
                time_us=latency_us + (1 << power) * factor / busbw / 1e3,
                cv=0.01,
                wrong_values=0,
            )
            for name, latency_us, busbw in strategies
            for power in range(10, 30)
        ),
    )


def outcome(name: str, document: ProbeDocument | None, reason: str | None = None, **more: object) -> ProbeOutcome:
    """Return the outcome of a program that succeeded, or failed with `reason`; `more` is not used."""
    planned = Planned(name=name, program=Path("program.py"))
    status = "ok" if reason is None else "failed"
    return ProbeOutcome(
        name=name,
        planned=planned,
        status=status,  # type: ignore[arg-type]  # a literal
        document=document,
        reason=reason,
        setup_s=1.0,
        measure_s=2.0,
    )


def four_h200() -> Facts:
    """Return all facts of the machine."""
    outcomes = [
        outcome("copies to and from the host", host_copies()),
        outcome("copies between GPUs", peer_copies()),
        outcome(
            "NCCL all-reduce",
            collectives(("nccl", 19.0, 341.0), ("nccl-ring", 24.0, 338.0), ("nccl-tree", 19.5, 242.0)),
        ),
        outcome("NCCL all-reduce, peer access off", collectives(("nccl-no-p2p", 31.0, 29.6))),
        outcome("host memory", host_memory()),
        outcome("gloo all-reduce", None, "had not finished after 60 s"),
    ]
    return assemble(inventory(), outcomes, [Skipped(what="something", why="left out")])
