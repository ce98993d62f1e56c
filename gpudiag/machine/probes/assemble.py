"""Add the results of probe programs to facts: number GPUs as in the inventory, and add ceilings and fits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from gpudiag.machine import ceilings
from gpudiag.machine.ceilings import PathCeiling
from gpudiag.machine.inventory.host.pci import normal_pci_id
from gpudiag.machine.probes.fits import fit_collectives
from gpudiag.machine.probes.programs import (
    CollectivesResult,
    HostCopies,
    HostCopy,
    HostLatency,
    HostMemoryResult,
    MeasuredCopy,
    PeerCopies,
    PeerCopy,
    PeerLatency,
    ProbeDocument,
)
from gpudiag.machine.probes.runner import ProbeOutcome
from gpudiag.model.facts import Bandwidth, Collective, Facts, Gpu, Latency, Link, Skipped
from gpudiag.model.sanitize import sanitize, sanitize_text
from gpudiag.units import bus_factor


class _Machine:
    """The inventory, with access by index and by CUDA ordinal."""

    def __init__(self, facts: Facts) -> None:
        self.gpus = {gpu.index: gpu for gpu in facts.gpus}
        self.links = {(link.a, link.b): link for link in facts.links}
        self._by_pci = {normal_pci_id(gpu.pci_id): gpu.index for gpu in facts.gpus if gpu.pci_id}
        self._visible = [gpu.index for gpu in facts.gpus if gpu.visible]

    def indices(self, document: ProbeDocument) -> dict[int, int]:
        """Map CUDA ordinals to inventory indices by PCI id, because CUDA and NVML may number GPUs differently."""
        indices = {}
        for gpu in document.gpus:
            index = self._by_pci.get(normal_pci_id(gpu.pci_id))
            # Without a known PCI id, assume that the visible GPUs have the same order, or else the same numbers.
            if index is None and gpu.ordinal < len(self._visible):
                index = self._visible[gpu.ordinal]
            indices[gpu.ordinal] = gpu.ordinal if index is None else index
        return indices

    def gpu(self, index: int) -> Gpu:
        """Return the inventory's GPU, or a placeholder if the GPU is unknown."""
        return self.gpus.get(index, Gpu(index=index, name=""))

    def link(self, a: int, b: int) -> Link | None:
        """Return the link between two GPUs."""
        return self.links.get((min(a, b), max(a, b)))


def assemble(facts: Facts, outcomes: Sequence[ProbeOutcome], skipped: Sequence[Skipped]) -> Facts:
    """Return the inventory with all measurements. The field `skipped` lists missing measurements."""
    documents = [outcome.document for outcome in outcomes if outcome.document is not None]
    facts = _with_links_under_load(facts, documents)
    machine = _Machine(facts)
    bandwidth: list[Bandwidth] = []
    latency: list[Latency] = []
    collectives: list[Collective] = []
    for document in documents:
        index = machine.indices(document)
        try:
            match document:
                case HostCopies():
                    bandwidth += [_host_copy(machine, index, copy) for copy in document.bandwidth]
                    latency += [_host_latency(index, measured) for measured in document.latency]
                case PeerCopies():
                    bandwidth += [_peer_copy(machine, index, copy) for copy in document.bandwidth]
                    latency += [_peer_latency(index, measured) for measured in document.latency]
                case HostMemoryResult():
                    bandwidth += _host_memory(document)
                case CollectivesResult():
                    collectives += _collectives(document)
        except KeyError as error:
            skipped = [*skipped, Skipped(what=document.schema, why=f"names a GPU that it does not list: {error}")]
    return replace(
        facts,
        bandwidth=tuple(bandwidth),
        latency=tuple(latency),
        collectives=tuple(collectives),
        collective_fits=fit_collectives(collectives),
        skipped=tuple(dict.fromkeys([*facts.skipped, *skipped, *_skipped(outcomes)])),
        probes={**facts.probes, **{outcome.name: _run_report(outcome) for outcome in outcomes}},
    )


def _with_links_under_load(facts: Facts, documents: Sequence[ProbeDocument]) -> Facts:
    """Add PCIe links that were read under load, and memory bus widths that NVML does not report."""
    machine = _Machine(facts)
    gpus = dict(machine.gpus)
    for document in documents:
        index = machine.indices(document)
        for probed in document.gpus:
            gpu = gpus.get(index[probed.ordinal])
            if gpu is None:
                continue
            if gpu.memory_bus_bits is None:
                gpu = replace(gpu, memory_bus_bits=probed.memory_bus_bits)
            if probed.pcie_under_load is not None:
                loaded = probed.pcie_under_load
                link = replace(gpu.pcie, generation=loaded.generation, width=loaded.width, under_load=True)
                gpu = replace(gpu, pcie=link)
            gpus[gpu.index] = gpu
    return replace(facts, gpus=tuple(gpus[gpu.index] for gpu in facts.gpus))


def _host_copy(machine: _Machine, index: dict[int, int], copy: HostCopy) -> Bandwidth:
    """Return the bandwidth of copies with the host or within GPUs, of one or all; `index` as in `_host_latency`."""
    devices = list(dict.fromkeys(f"gpu:{index[ordinal]}" for ordinal in copy.gpus))
    per_device: dict[str, float] = {}
    # A GPU with two concurrent flows, one in each direction, gets their sum.
    for ordinal, rate in zip(copy.gpus, copy.each_gb_per_s, strict=True):
        device = f"gpu:{index[ordinal]}"
        per_device[device] = per_device.get(device, 0.0) + rate
    end = devices[0] if len(devices) == 1 else "all"
    # Each GPU counts once, because `_host_ceiling` includes both directions.
    bound = ceilings.all_at_once([_host_ceiling(machine.gpu(index[i]), copy) for i in dict.fromkeys(copy.gpus)])
    if len(devices) == 1:
        bound = _host_ceiling(machine.gpu(index[copy.gpus[0]]), copy)
    return _bandwidth(
        copy,
        bound,
        path=copy.path,
        src=end if copy.path != "host_to_device" else "host",
        dst=end if copy.path != "device_to_host" else "host",
        memory=copy.memory if copy.memory in {"pinned", "pageable"} else "device",
        direction="both_ways" if copy.direction == "both_ways" else "one_way",
        per_device=per_device if len(devices) > 1 else {},
    )


def _host_ceiling(gpu: Gpu, copy: HostCopy) -> PathCeiling:
    if copy.path == "device_to_device":
        return ceilings.on_device(gpu)
    there, back = ceilings.pcie(gpu.pcie, "host_to_device"), ceilings.pcie(gpu.pcie, "device_to_host")
    if copy.direction == "both_ways":
        return ceilings.both_ways(there, back)
    return there if copy.path == "host_to_device" else back


def _host_latency(index: dict[int, int], measured: HostLatency) -> Latency:
    """Return a latency between host and GPU; `index` maps CUDA ordinals to indices in the inventory."""
    gpu = f"gpu:{index[measured.gpu]}"
    return Latency(
        kind=measured.kind,
        src=gpu if measured.src == "gpu" else "host",
        dst=gpu if measured.dst == "gpu" else "host",
        time_us=measured.time_us,
        cv=measured.cv,
    )


def _peer_latency(index: dict[int, int], measured: PeerLatency) -> Latency:
    """Return a latency between two GPUs; `index` as in `_host_latency`."""
    return Latency(
        kind=measured.kind,
        src=f"gpu:{index[measured.src]}",
        dst=f"gpu:{index[measured.dst]}",
        time_us=measured.time_us,
        peer_access=measured.peer_access,
        cv=measured.cv,
    )


def _peer_copy(machine: _Machine, index: dict[int, int], copy: PeerCopy) -> Bandwidth:
    """Return the bandwidth of a copy between two GPUs; `index` maps CUDA ordinals to indices in the inventory."""
    a, b = index[copy.src], index[copy.dst]
    there, back = (_peer_ceiling(machine, x, y, copy) for x, y in itertools.permutations((a, b)))
    bound = ceilings.both_ways(there, back) if copy.direction == "both_ways" else there
    return _bandwidth(
        copy,
        bound,
        path="peer",
        src=f"gpu:{a}",
        dst=f"gpu:{b}",
        memory="device",
        direction="both_ways" if copy.direction == "both_ways" else "one_way",
        peer_access=copy.peer_access,
        initiator="dst" if copy.initiator == "dst" else "src",
    )


def _peer_ceiling(machine: _Machine, a: int, b: int, copy: PeerCopy) -> PathCeiling:
    if copy.peer_access:
        return ceilings.peer(machine.gpu(a), machine.gpu(b), machine.link(a, b))
    return ceilings.staged(machine.gpu(a), machine.gpu(b))


def _host_memory(document: HostMemoryResult) -> list[Bandwidth]:
    """Return the bandwidths of host memory between NUMA nodes."""
    bound = ceilings.host_memory()
    return [
        _bandwidth(
            copy,
            bound,
            path="host_memory",
            src=sanitize_text(copy.src),
            dst=sanitize_text(copy.dst),
            memory="pageable",
            direction="one_way",
        )
        for copy in document.bandwidth
    ]


def _bandwidth(copy: MeasuredCopy, bound: PathCeiling, **path: Any) -> Bandwidth:
    """Return a copy's bandwidth with its ceiling; `path` has the fields that describe the copy's path."""
    return Bandwidth(
        size_bytes=copy.size_bytes,
        gb_per_s=copy.gb_per_s,
        ceiling_gb_per_s=bound.gb_per_s,
        ceiling_source=bound.source,
        cv=copy.cv,
        repeats=copy.repeats,
        verified=_verified(copy.wrong_words),
        **path,
    )


def _collectives(document: CollectivesResult) -> list[Collective]:
    """Return the collectives with their algorithm and bus bandwidths."""
    collectives = []
    for measured in document.collectives:
        algbw = measured.bytes / measured.time_us / 1e3  # bytes per µs are 1e6 bytes/s
        collectives.append(
            Collective(
                operation=measured.operation,
                strategy=measured.strategy,
                ranks=measured.ranks,
                bytes=measured.bytes,
                time_us=measured.time_us,
                algbw_gb_per_s=algbw,
                busbw_gb_per_s=algbw * (bus_factor(measured.operation, measured.ranks) or 1.0),
                cv=measured.cv,
                verified=_verified(measured.wrong_values),
            )
        )
    return collectives


def _verified(wrong: int | None) -> bool | None:
    return None if wrong is None else wrong == 0


def _skipped(outcomes: Sequence[ProbeOutcome]) -> list[Skipped]:
    """Return the measurements that are missing, with their reasons."""
    skipped = []
    for outcome in outcomes:
        if outcome.reason is not None:
            # Reasons of failures are predicates, such as `was not ready to measure after 60 s`.
            prefix = "" if outcome.status == "unavailable" else "the probe "
            skipped.append(Skipped(what=outcome.name, why=sanitize_text(prefix + outcome.reason)))
        document = outcome.document
        if document is not None:
            missing = (*document.errors, *document.skipped)
            skipped += [Skipped(what=sanitize_text(item.what), why=sanitize_text(item.why)) for item in missing]
    return skipped


def _run_report(outcome: ProbeOutcome) -> dict[str, object]:
    """Return a program's entry in `Facts.probes`: status, durations, command line, versions, number of errors."""
    document = outcome.document
    report: dict[str, object] = {
        "status": outcome.status,
        "setup_s": round(outcome.setup_s if document is None else document.setup_s, 3),
        "measure_s": round(outcome.measure_s if document is None else document.measure_s, 3),
        "program": outcome.planned.program.name,
        "arguments": list(outcome.planned.arguments),
    }
    if outcome.document is not None:
        report["versions"] = sanitize(outcome.document.versions)
        report["phases_s"] = {
            sanitize_text(name): round(seconds, 3) for name, seconds in outcome.document.phases_s.items()
        }
        report["errors"] = len(outcome.document.errors)
    return report
