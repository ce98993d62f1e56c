"""Find the probe programs, and decode their results.

A program prints a JSON object whose `schema` names its kind and version. The output is validated against the types
below, because a program may be killed while it writes, and its file may be replaced.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

import gpudiag
from gpudiag.errors import GpudiagError


class ProbeFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement that failed or was left out, and the reason."""

    what: str
    why: str


class PciePair(msgspec.Struct, frozen=True, kw_only=True):
    """Generation and width of a PCIe link, read while data moved."""

    generation: int
    width: int


class ProbedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU by its CUDA ordinal; `pci_id` identifies it in the inventory."""

    ordinal: int
    pci_id: str
    name: str = ""
    memory_bus_bits: int | None = None
    l2_bytes: int | None = None
    numa_node: int | None = None
    pcie_under_load: PciePair | None = None
    clocks_under_load: dict[str, int] = {}


class ProbeDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of every program's result."""

    schema: str
    #: Reason why this machine has nothing to measure, which is not a failure; None if there is something.
    unavailable: str | None = None
    errors: tuple[ProbeFailure, ...] = ()
    skipped: tuple[ProbeFailure, ...] = ()
    versions: dict[str, str] = {}
    setup_s: float = 0.0
    measure_s: float = 0.0
    #: Seconds of each phase of loading and measuring, only of this part of the program.
    phases_s: dict[str, float] = {}
    gpus: tuple[ProbedGpu, ...] = ()


class MeasuredCopy(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of every copy. `gb_per_s` is a median of repeated runs, and `cv` their coefficient of variation.

    `wrong_words` is the number of words that arrived wrong; None if words were not compared.
    """

    gb_per_s: float
    size_bytes: int
    cv: float
    repeats: int
    wrong_words: int | None = None


class HostCopy(MeasuredCopy, frozen=True, kw_only=True):
    """Copies with the host or within a GPU. `gpus` and `each_gb_per_s` have each flow's CUDA ordinal and rate."""

    path: str
    memory: str
    direction: str
    gpus: tuple[int, ...]
    each_gb_per_s: tuple[float, ...]


class HostLatency(msgspec.Struct, frozen=True, kw_only=True):
    """Latency between the host and GPU `gpu`: `src` and `dst` are `host` or `gpu`."""

    kind: str
    src: str
    dst: str
    gpu: int
    time_us: float
    cv: float


class HostCopies(ProbeDocument, frozen=True, kw_only=True):
    """Result of schema gpudiag/probe-copy-host/1."""

    bandwidth: tuple[HostCopy, ...] = ()
    latency: tuple[HostLatency, ...] = ()


class PeerCopy(MeasuredCopy, frozen=True, kw_only=True):
    """Copies from GPU `src` to GPU `dst`, or both ways; `initiator` is `src` (write) or `dst` (read)."""

    src: int
    dst: int
    direction: str
    initiator: str
    peer_access: bool


class PeerLatency(msgspec.Struct, frozen=True, kw_only=True):
    """Latency between two GPUs. For dependent loads, a kernel on `src` reads memory of `dst`."""

    kind: str
    src: int
    dst: int
    peer_access: bool
    time_us: float
    cv: float


class PeerCopies(ProbeDocument, frozen=True, kw_only=True):
    """Result of schema gpudiag/probe-copy-peer/1."""

    bandwidth: tuple[PeerCopy, ...] = ()
    latency: tuple[PeerLatency, ...] = ()


class HostMemoryCopy(MeasuredCopy, frozen=True, kw_only=True):
    """Copies from NUMA node `src` to node `dst` by threads on `src`. Each copied byte counts once."""

    src: str
    dst: str
    threads: int


class HostMemoryResult(ProbeDocument, frozen=True, kw_only=True):
    """Result of schema gpudiag/probe-host-memory/1."""

    bandwidth: tuple[HostMemoryCopy, ...] = ()


class MeasuredCollective(msgspec.Struct, frozen=True, kw_only=True):
    """A collective of one size; `bytes` is the size of one rank's buffer."""

    operation: str
    strategy: str
    ranks: int
    bytes: int
    time_us: float
    cv: float
    wrong_values: int | None = None


class CollectivesResult(ProbeDocument, frozen=True, kw_only=True):
    """Result of schema gpudiag/probe-allreduce/1."""

    collectives: tuple[MeasuredCollective, ...] = ()


#: Type of each result by its schema.
SCHEMAS: dict[str, type[ProbeDocument]] = {
    "gpudiag/probe-copy-host/1": HostCopies,
    "gpudiag/probe-copy-peer/1": PeerCopies,
    "gpudiag/probe-host-memory/1": HostMemoryResult,
    "gpudiag/probe-allreduce/1": CollectivesResult,
}

Document = TypeVar("Document", bound=ProbeDocument)


class _SchemaOnly(msgspec.Struct):
    schema: str


def programs_directory() -> Path:
    """Return the folder of the probe programs: inside the installed package, else beside it in a checkout.

    Raises:
        GpudiagError: neither exists.
    """
    package = Path(gpudiag.__file__).resolve().parent
    for directory in (package / "_probes", package.parent / "probes"):
        if (directory / "_protocol.py").is_file():
            return directory
    raise GpudiagError("the probe programs are not installed", "Install gpudiag again; the wheel carries them.")


def decode_document(output: bytes) -> ProbeDocument:
    """Decode and validate a program's output.

    Raises:
        ValueError: the output is not JSON, has an unknown schema, or lacks fields of its schema. The message names the
            reason.
    """
    try:
        schema = msgspec.json.decode(output, type=_SchemaOnly).schema
        if schema not in SCHEMAS:
            raise ValueError(f"printed a result of unknown schema {schema[:80]!r}")
        document = msgspec.json.decode(output, type=SCHEMAS[schema])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"printed no valid result: {str(error)[:200]}") from error
    return document
