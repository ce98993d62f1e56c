"""Read XSpace, which the profiler of TensorFlow and JAX writes (`*.xplane.pb`, plain or gzipped)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpudiag.errors import NotATraceError, TooLargeError, UnreadableInputError
from gpudiag.model.sanitize import with_escapes
from gpudiag.trace.readers.xspace.planes import CORRELATION, HLO_MODULE, about, device_of, read_plane, unread_device_of
from gpudiag.trace.readers.xspace.process import Process, assemble
from gpudiag.trace.readers.xspace.wire import WireError
from gpudiag.trace.unpack import ReadLimits, free_memory_bytes, read_whole

#: Bytes of memory per event for its columns, which exist three times while they are sorted.
_MEMORY_PER_EVENT = 512
_ENVIRONMENT = "Task Environment"
_CUT = "Let the profiler stop before the job ends, and copy the file whole, in binary mode."
_RECORD = "Record five steps with tf.profiler.experimental while training runs, and stop it before the job ends."


def read_xspace(path: Path, shown: str, limits: ReadLimits) -> Process:
    """Read the XSpace of one process, a protobuf that may be gzipped. The arguments are those of `Reader.read`.

    Raises:
        UnreadableInputError: the file is missing, damaged, truncated, from several hosts, or has no events.
        NotATraceError: the file is not an XSpace.
        TooLargeError: the file unpacks to more than the limits allow, or its events do not fit into memory.
    """
    space = _parse(bytes(read_whole(path, shown, limits, binary=True)), shown)
    _check(space, shown)
    notes = [with_escapes(line) for line in (*space.errors, *space.warnings)][:20]
    chosen = [plane for plane in space.planes if device_of(plane) is not None or plane.name.startswith("/host:")]
    try:
        planes = [read_plane(plane) for plane in chosen]
    except WireError as error:
        raise UnreadableInputError(f"{shown} is damaged: {error}", _CUT) from error
    unread = tuple(sorted({kind for plane in space.planes if (kind := unread_device_of(plane)) is not None}))
    if not any(len(plane.name) for plane in planes):
        raise _no_events(shown, unread)
    # Calls with a correlation on a host, or events on a GPU.
    has_device_events = any(CORRELATION in plane.stats if plane.device is None else len(plane.name) for plane in planes)
    runs_modules = any(plane.device is None and HLO_MODULE in plane.stats for plane in planes)  # CPU devices of JAX
    if not has_device_events and not unread and not runs_modules:
        notes.append(_no_device(space, shown))
    return assemble(planes, shown=shown, host=_host(space), begun_ns=_begun_ns(space), notes=notes, unread=unread)


def _no_events(shown: str, unread: tuple[str, ...]) -> UnreadableInputError:
    if unread:
        return UnreadableInputError(
            f"{shown} has activity of {with_escapes(', '.join(unread))} only, which gpudiag does not read",
            "Use the tools of the accelerator's vendor (for TPU: xprof); gpudiag reads GPUs of NVIDIA and AMD.",
        )
    return UnreadableInputError(f"{shown} is an XSpace without events: nothing was recorded", _RECORD)


def _parse(data: bytes, shown: str) -> Any:
    """Decode the protobuf message, except for the events of its lines."""
    from google.protobuf.message import DecodeError

    from gpudiag.model.protobuf import message_type

    try:
        space = message_type("xplane", "XSpace", undecoded="XLine.events").FromString(data)
    except DecodeError as error:
        raise UnreadableInputError(f"{shown} is no whole XSpace: it breaks off or is damaged", _CUT) from error
    if not space.planes:
        raise NotATraceError(f"{shown} is no XSpace: it holds no planes", _RECORD)
    return space


def _check(space: Any, shown: str) -> None:
    """Raise an error if the XSpace is not the trace of one process, or does not fit into memory."""
    hosts = sorted(set(space.hostnames))
    owners: dict[int, int] = {}  # GPU's ordinal → number of planes with events; one host has one plane per GPU
    for plane in space.planes:
        device = device_of(plane)
        if device is not None and any(len(line.events) for line in plane.lines):
            owners[device] = owners.get(device, 0) + 1
    if len(hosts) > 1 or any(count > 1 for count in owners.values()):
        who = with_escapes(", ".join(hosts)) if len(hosts) > 1 else "several"
        raise UnreadableInputError(
            f"{shown} holds the planes of several hosts ({who}), and does not say whose is whose",
            "Give the file of each host: the profiler writes one <host>.xplane.pb each into the same directory.",
        )
    events = sum(len(line.events) for plane in space.planes for line in plane.lines)
    free = free_memory_bytes()
    if free is not None and events * _MEMORY_PER_EVENT > free:
        raise TooLargeError(
            f"{shown} has {events} events, more than fit the free memory of this machine",
            "Close other programs or use a larger machine; else record fewer steps.",
        )


def _no_device(space: Any, shown: str) -> str:
    """Return the note for a trace without work of a GPU."""
    others = sorted({plane.name for plane in space.planes if plane.name.startswith("/device:")})
    if others:
        return (
            f"{shown} has no GPU plane, only {with_escapes(', '.join(others[:3]))} without events of an accelerator: "
            "the training thread stands in for the device"
        )
    return (
        f"{shown} has no device plane: the program saw no GPU, or could not trace it (see the job's log for CUPTI), so "
        "the training thread stands in for the device"
    )


def _host(space: Any) -> str:
    return with_escapes(space.hostnames[0]) if len(space.hostnames) == 1 else ""


def _begun_ns(space: Any) -> int:
    """Return the time at which the profile began (Unix, ns); 0 if unknown."""
    for plane in space.planes:
        if plane.name == _ENVIRONMENT:
            begun = about(plane).get("profile_start_time", 0)
            return begun if isinstance(begun, int) and 0 <= begun < 2**62 else 0
    return 0
