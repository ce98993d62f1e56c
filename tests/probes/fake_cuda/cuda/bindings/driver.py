"""Fake a driver whose devices are host memory and whose streams run their work immediately, on the caller's thread.

The fake driver has two or more devices, addresses, copies by address, memset, events on a clock, the probes' kernels,
and peer access. The fake driver does not model time. FAKE_CUDA is a JSON object: {"devices": number, "peer": whether
peer access is possible, "corrupt": whether large copies change a bit, "fail": name of a function that fails, "kernels":
whether the kernels can be loaded}.
"""

# ruff: noqa: N801, N802, N816 # names of the CUDA driver

from __future__ import annotations

import ctypes
import enum
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

OPTIONS = {"devices": 2, "peer": True, "corrupt": False, "fail": "", "kernels": True} | json.loads(
    os.environ.get("FAKE_CUDA", "{}")
)
CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_DEVICEMAP = 1, 2


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_PTX = 218
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704


class CUdevice_attribute(enum.IntEnum):
    CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH = 37
    CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38


class CUstream_flags(enum.IntEnum):
    CU_STREAM_NON_BLOCKING = 1


class CUevent_flags(enum.IntEnum):
    CU_EVENT_DEFAULT = 0


class CUstreamWaitValue_flags(enum.IntEnum):
    CU_STREAM_WAIT_VALUE_EQ = 1


_OK = (CUresult.CUDA_SUCCESS,)
_memory: dict[int, np.ndarray] = {}
_events: dict[int, float] = {}
_current = threading.local()
_lock = threading.Lock()


def __getattr__(name: str) -> Any:
    function = globals().get("_" + name)
    if function is None:
        raise AttributeError(name)
    if OPTIONS["fail"] == name:
        return lambda *_: (CUresult.CUDA_ERROR_INVALID_VALUE,)
    return function


def _allocate(size: int) -> int:
    block = np.zeros((size + 7) // 8 + 1, dtype=np.uint64)
    address = block.ctypes.data
    with _lock:
        _memory[address] = block
    return address


def _cuInit(_flags):
    return _OK


def _cuDeviceGetCount():
    return (*_OK, OPTIONS["devices"])


def _cuDriverGetVersion():
    return (*_OK, 13000)


def _cuDeviceGet(ordinal):
    return (*_OK, ordinal)


def _cuDeviceGetPCIBusId(length, device):
    return (*_OK, f"0000:{device + 6:02X}:00.0".encode() + b"\0" * (length - 12))


def _cuDeviceGetName(length, _device):
    return (*_OK, b"Fake GPU".ljust(length, b"\0"))


def _cuDeviceGetAttribute(attribute, _device):
    return (*_OK, {37: 6144, 38: 1 << 20}[attribute])


def _cuDevicePrimaryCtxRetain(device):
    return (*_OK, 1000 + device)


def _cuCtxSetCurrent(context):
    _current.context = context
    return _OK


def _cuCtxSynchronize():
    assert _current.context
    return _OK


def _cuStreamCreate(flags):
    assert flags == 1
    return (*_OK, 7)


def _cuStreamSynchronize(_stream):
    return _OK


def _cuEventCreate(_flags):
    handle = len(_events) + 1
    _events[handle] = 0.0
    return (*_OK, handle)


def _cuEventRecord(event, _stream):
    _events[event] = time.perf_counter()
    return _OK


def _cuEventSynchronize(_event):
    return _OK


def _cuEventElapsedTime(start, end):
    return (*_OK, max(1e-6, (_events[end] - _events[start]) * 1e3))


def _cuMemGetInfo():
    return (*_OK, 320 << 20, 1 << 30)


def _cuMemAlloc(size):
    return (*_OK, _allocate(size))


def _cuMemHostAlloc(size, flags):
    assert flags == 3
    return (*_OK, _allocate(size))


def _copy(target, source, size):
    ctypes.memmove(target, source, size)
    if OPTIONS["corrupt"] and size > 4096:
        ctypes.c_uint8.from_address(target + size // 2).value ^= 0x10


def _cuMemcpyHtoDAsync(target, source, size, _stream):
    _copy(target, source, size)
    return _OK


_cuMemcpyDtoHAsync = _cuMemcpyDtoDAsync = _cuMemcpyAsync = _cuMemcpyHtoDAsync


def _cuMemcpyHtoD(target, source, size):
    ctypes.memmove(target, source, size)
    return _OK


_cuMemcpyDtoH = _cuMemcpyHtoD


def _cuMemcpyPeerAsync(target, _target_context, source, _source_context, size, _stream):
    _copy(target, source, size)
    return _OK


def _cuMemsetD8Async(target, value, size, _stream):
    ctypes.memset(target, value, size)
    return _OK


def _cuDeviceCanAccessPeer(_a, _b):
    return (*_OK, int(OPTIONS["peer"]))


def _cuCtxEnablePeerAccess(_context, flags):
    assert flags == 0
    return _OK


def _cuModuleLoadData(address):
    if not OPTIONS["kernels"]:
        return (CUresult.CUDA_ERROR_INVALID_PTX,)
    assert b".entry fill_pattern" in ctypes.string_at(address)
    return (*_OK, 1)


def _cuModuleGetFunction(_module, name):
    assert b".entry " + name in (Path(__file__).parents[5] / "probes" / "kernels.ptx").read_bytes()
    return (*_OK, name.decode())


def _words(address: int, count: int, kind=ctypes.c_uint64) -> np.ndarray:
    return np.ctypeslib.as_array((kind * count).from_address(address))


def _pattern(first: int, count: int, seed: int, factor: int = 1) -> np.ndarray:
    """Compute `count` words of splitmix64 from word `first` on, independently of the probes, to check them."""
    with np.errstate(over="ignore"):
        x = (np.arange(first, first + count, dtype=np.uint64) * np.uint64(factor) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) ^ np.uint64(seed)


def _summands(count: int, seed: int, rank: int) -> np.ndarray:
    """Compute a rank's summands independently of the probes: integers from -1000 to 1000."""
    with np.errstate(over="ignore"):
        positions = np.arange(count, dtype=np.uint64) * np.uint64(64) + np.uint64(rank + 1)
        x = positions * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = (x ^ (x >> np.uint64(31))) ^ np.uint64(seed)
    return ((x % np.uint64(2001)).astype(np.int64) - 1000).astype(np.float32)


def _cuLaunchKernel(function, *launch):
    """Run a kernel of the probes at once; `launch[8]` is the address of the array of its arguments' addresses."""
    pointers = launch[8]

    def long(i: int) -> int:
        return ctypes.c_uint64.from_address(ctypes.c_uint64.from_address(pointers + 8 * i).value).value

    def int32(i: int) -> int:
        return ctypes.c_uint32.from_address(ctypes.c_uint64.from_address(pointers + 8 * i).value).value

    if function == "fill_pattern":
        _words(long(0), long(1))[:] = _pattern(0, long(1), long(2))
    elif function == "count_wrong_words":
        wrong = np.count_nonzero(_words(long(0), long(1)) != _pattern(0, long(1), long(2)))
        _words(long(3), 1)[0] += np.uint64(wrong)
    elif function == "fill_summands":
        _words(long(0), long(1), ctypes.c_float)[:] = _summands(long(1), long(2), int32(3))
    elif function == "count_wrong_sums":
        expected = sum(_summands(long(1), long(2), rank) for rank in range(int32(3)))
        wrong = np.count_nonzero(_words(long(0), long(1), ctypes.c_float) != expected)
        _words(long(4), 1)[0] += np.uint64(wrong)
    elif function == "chase_pointers":
        at, table = long(1), _words(long(0), 16384 * 16)
        for _ in range(int32(2)):
            at = int(table[at])
        _words(long(3), 1)[0] = at
    else:
        assert function == "wait_for_host"
    return _OK
