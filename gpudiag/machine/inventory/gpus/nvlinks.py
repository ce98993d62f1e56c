"""Read the NVLink lanes of one GPU: state, rate, and remote device."""

from __future__ import annotations

from typing import Any, Literal

from gpudiag.machine.inventory.gpus.nvml import INVALID_ARGUMENT, NOT_SUPPORTED, NvmlSession
from gpudiag.machine.inventory.host.pci import pci_id_of
from gpudiag.model.facts import NvLink

#: NVLink version by NVML's enumeration of revisions (nvml.h, NVML_NVLINK_VERSION_*).
_VERSION = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}
#: Kind of the remote device by NVML's enumeration (nvml.h, nvmlIntNvLinkDeviceType_t).
_REMOTE: dict[int, Literal["gpu", "switch", "cpu", "unknown"]] = {0: "gpu", 1: "cpu", 2: "switch"}

#: NVML field identifiers (nvml.h) of the speed of one lane, and of the common speed of all lanes, both in MB/s.
_LANE_SPEED = 164
_COMMON_SPEED = 90
_MOST_LANES = 64


def _speed(session: NvmlSession, handle: Any, lane: int) -> float | None:
    values = session.ask({}, "speed", "nvmlDeviceGetFieldValues", handle, [(_LANE_SPEED, lane), _COMMON_SPEED])
    for value in values or ():
        if value.nvmlReturn == 0 and value.value.uiVal > 0:
            return float(value.value.uiVal) / 1000
    return None


def _remote(session: NvmlSession, handle: Any, lane: int) -> str | None:
    info = session.ask({}, "remote", "nvmlDeviceGetNvLinkRemotePciInfo", handle, lane)
    return pci_id_of(info)


def nvlinks(session: NvmlSession, handle: Any, reasons: dict[str, str]) -> tuple[NvLink, ...]:
    """Return the lanes of the GPU in order. Set `reasons["nvlinks"]` if NVLink is absent or cannot be read."""
    lanes: list[NvLink] = []
    for lane in range(_MOST_LANES):
        lane_reasons: dict[str, str] = {}
        state = session.ask(lane_reasons, "nvlinks", "nvmlDeviceGetNvLinkState", handle, lane)
        if state is None:
            # The driver refuses lane numbers after the last lane. Such a refusal is a failure only for lane 0. Other
            # errors are failures for every lane.
            if not lanes or session.last_code not in {INVALID_ARGUMENT, NOT_SUPPORTED}:
                reasons["nvlinks"] = lane_reasons["nvlinks"]
            break
        if not state:
            lanes.append(NvLink(lane=lane, active=False))
            continue
        version = session.ask({}, "version", "nvmlDeviceGetNvLinkVersion", handle, lane)
        kind = session.ask({}, "kind", "nvmlDeviceGetNvLinkRemoteDeviceType", handle, lane)
        lanes.append(
            NvLink(
                lane=lane,
                active=True,
                version=_VERSION.get(version) if version is not None else None,
                gb_per_s=_speed(session, handle, lane),
                remote=_remote(session, handle, lane),
                remote_kind=_REMOTE.get(kind, "unknown") if kind is not None else "unknown",
            )
        )
    return tuple(lanes)
