"""Compile and load reduce.c, where there is a C compiler."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from gpudiag.model.run_directory import cache_home, is_private
from gpudiag.training.strategies.shared_host.layout import LINE, MOST_LANES

#: As in reduce.c.
MOST_THREADS = 64

_SOURCE = Path(__file__).with_name("reduce.c")
_FLAGS = ("-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC")
_COMPILE_S = 60


class Engine(ctypes.Structure):
    """`struct engine` of reduce.c; its private counters are reached through the functions only."""

    _fields_ = (
        ("control", ctypes.c_void_p),
        ("pieces", ctypes.c_void_p),
        ("staging", ctypes.c_void_p),
        ("page_bytes", ctypes.c_uint64),
        ("chunk_bytes", ctypes.c_uint64),
        ("rank", ctypes.c_uint32),
        ("world", ctypes.c_uint32),
        ("slots", ctypes.c_uint32),
        ("lanes", ctypes.c_uint32),
        ("ring", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("spin", ctypes.c_uint32),
        ("in_turn", ctypes.c_uint32),
    )


class Queues(ctypes.Structure):
    """`struct queues` of reduce.c."""

    _fields_ = (
        ("wait", ctypes.c_void_p),
        ("write", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("into", ctypes.c_void_p),
        ("staging", ctypes.c_void_p),
        ("page", ctypes.c_uint64),
        ("chunk_bytes", ctypes.c_uint64),
        ("rank", ctypes.c_uint32),
        ("world", ctypes.c_uint32),
        ("slots", ctypes.c_uint32),
        ("lanes", ctypes.c_uint32),
        ("outgoing", ctypes.c_void_p * MOST_LANES),
        ("incoming", ctypes.c_void_p * MOST_LANES),
    )


#: The driver's functions in the first fields of `Queues`.
DRIVER_FUNCTIONS = {
    "wait": "cuStreamWaitValue32_v2",
    "write": "cuStreamWriteValue32_v2",
    "out": "cuMemcpyDtoHAsync_v2",
    "into": "cuMemcpyHtoDAsync_v2",
}


def new_queues() -> Queues | None:
    """Queues with the driver's functions in them; None where there is no such driver."""
    queues = Queues()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        for field, name in DRIVER_FUNCTIONS.items():
            setattr(queues, field, ctypes.cast(getattr(driver, name), ctypes.c_void_p).value)
    except (OSError, AttributeError):
        return None
    return queues


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled loops; None where there is no compiler, or it fails."""
    compiler = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    try:
        version = subprocess.run([compiler, "--version"], capture_output=True, timeout=_COMPILE_S, check=True).stdout
        # What was compiled for this processor may not run on another that shares the home directory.
        made_from = (_SOURCE.read_bytes(), version, " ".join(_FLAGS).encode(), _processor().encode())
        name = f"reduce-{hashlib.sha256(b'|'.join(made_from)).hexdigest()[:24]}.so"
        kept = _private_cache()
        if kept is None:
            with tempfile.TemporaryDirectory(prefix="gpudiag-") as passing:
                return _load(_compile(compiler, Path(passing) / name))
        made = kept / name
        return _load(made if made.is_file() and not made.is_symlink() else _compile(compiler, made))
    except (OSError, subprocess.SubprocessError):
        return None


def _compile(compiler: str, target: Path) -> Path:
    with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".part") as part:
        command = [compiler, *_FLAGS, str(_SOURCE), "-o", part.name]
        subprocess.run(command, capture_output=True, timeout=_COMPILE_S, check=True)
        os.link(part.name, made := f"{part.name}.so")  # the other ranks compile at the same time
        Path(made).replace(target)
    return target


def _load(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    pointer = ctypes.c_void_p
    for name, takes in {
        "gpudiag_reduce": [pointer, ctypes.c_uint32],
        "gpudiag_coordinate": [pointer],
        "gpudiag_submit": [pointer, ctypes.c_uint32],
        "gpudiag_stop": [pointer],
        "gpudiag_queue": [pointer, *[ctypes.c_uint64] * 3, ctypes.c_uint32],
        "gpudiag_engine_bytes": [],
        "gpudiag_has_float16": [],
    }.items():
        getattr(loaded, name).argtypes = takes
    return loaded


def new_engine(loaded: ctypes.CDLL) -> tuple[Engine, ctypes.Array[ctypes.c_char]]:
    """An empty engine and the memory that it lies in, which must outlive its use."""
    memory = ctypes.create_string_buffer(loaded.gpudiag_engine_bytes() + LINE)
    begin = -(-ctypes.addressof(memory) // LINE) * LINE
    return Engine.from_address(begin), memory


def _private_cache() -> Path | None:
    """A directory that only this user can write to, since what is in it will be run; None where there is none."""
    try:
        folder = cache_home(os.environ) / "gpudiag" / "native"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder if is_private(folder) and os.access(folder, os.W_OK) else None
    except (OSError, RuntimeError):
        return None


def _processor() -> str:
    """Model and features of the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "|".join(dict.fromkeys(line for line in text.splitlines() if line.startswith(wanted)))
