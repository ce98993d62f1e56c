"""Read a trace's header: rank, world size, process groups, host, devices, lost events."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from gpudiag.model.event import ProcessGroup
from gpudiag.model.quantities import MOST_RANKS
from gpudiag.trace.readers.kineto.event_json import TraceHeader

_T = TypeVar("_T")
_DROPPED = re.compile(r"dropped (\d+) (?:activity )?records", re.IGNORECASE)
_STOPPED_EARLY = re.compile(r"CUPTI stopped early\? = ([1-9])")


class _Distributed(msgspec.Struct, gc=False):
    backend: msgspec.Raw = msgspec.Raw(b"")
    rank: msgspec.Raw = msgspec.Raw(b"")
    world_size: msgspec.Raw = msgspec.Raw(b"")
    pg_config: msgspec.Raw = msgspec.Raw(b"")


class _ProcessGroup(msgspec.Struct, gc=False):
    pg_name: str | int = ""
    pg_desc: str = ""
    ranks: list[int] = []


class _DeviceProperties(msgspec.Struct, gc=False):
    id: int = -1
    name: str = ""


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts in the header.

    Attributes:
        rank: this process's global rank, or None.
        world_size: number of ranks in the job, or None.
        groups: name → process group.
        host: host name, or "".
        device_names: device ordinal → model.
        backend: backend of the default process group, or "".
        base_ns: absolute time (Unix, ns) of the timestamps' zero.
        dropped_events: number of events that the profiler reported as lost.
        notes: other problems that the profiler reported.
        is_kineto: whether the header has fields that only PyTorch's profiler writes.
    """

    rank: int | None = None
    world_size: int | None = None
    groups: dict[str, ProcessGroup] = msgspec.field(default_factory=dict)
    host: str = ""
    device_names: dict[int, str] = msgspec.field(default_factory=dict)
    backend: str = ""
    base_ns: int = 0
    dropped_events: int = 0
    notes: tuple[str, ...] = ()
    is_kineto: bool = False

    def device_name(self, device: int) -> str:
        """Return the model of a device, or "".

        On ROCm, events number a device among all CPUs and GPUs of the host, but the header numbers only GPUs. Thus, a
        device that the header does not describe gets the model of the described devices, if all of them have one model.
        """
        models = set(self.device_names.values())
        return self.device_names.get(device) or (models.pop() if len(models) == 1 else "")


def is_present(raw: msgspec.Raw) -> bool:
    """Return whether a field was present."""
    return memoryview(raw).nbytes > 0


def loosely(raw: msgspec.Raw, wanted: type[_T] | Any, default: _T) -> _T:
    """Decode a value leniently; return the default if the value is missing or has a different type."""
    if not is_present(raw):
        return default
    try:
        value: _T = msgspec.json.decode(raw, type=wanted, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return default
    return value


def describe(header: TraceHeader) -> JobFacts:
    """Read the header leniently: missing fields, unknown types and impossible values are ignored."""
    distributed = loosely(header.distributed, _Distributed, _Distributed())
    rank = loosely(distributed.rank, int, -1)
    world_size = loosely(distributed.world_size, int, -1)
    groups: list[_ProcessGroup] = loosely(distributed.pg_config, list[_ProcessGroup], [])
    devices: list[_DeviceProperties] = loosely(header.devices, list[_DeviceProperties], [])
    base_ns = loosely(header.base_time, int, 0)
    lines: list[str] = []  # of the profiler's log, which states lost events
    for raw in (header.log_information, header.log_warnings, header.log_errors):
        lines += loosely(raw, list[str], [])
    logs = "\n".join(lines)
    return JobFacts(
        rank=rank if 0 <= rank < 2**31 else None,
        world_size=world_size if 0 < world_size < 2**31 else None,
        groups={
            str(group.pg_name): ProcessGroup(tuple(group.ranks), "" if group.pg_desc == "undefined" else group.pg_desc)
            for group in groups
            if all(0 <= rank < MOST_RANKS for rank in group.ranks)
        },
        host=loosely(header.host, str, ""),
        device_names={device.id: device.name for device in devices if device.id >= 0},
        backend=loosely(distributed.backend, str, ""),
        base_ns=base_ns if 0 <= base_ns < 2**62 else 0,
        dropped_events=min(2**62, sum(int(count) for count in _DROPPED.findall(logs))),
        notes=("the profiler says that it stopped early, out of buffers",) if _STOPPED_EARLY.search(logs) else (),
        is_kineto=any(map(is_present, (header.schema, header.distributed, header.devices, header.base_time))),
    )
