"""Compile and load reduce.c, if there is a C compiler."""

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

#: Maximum number of summing threads. reduce.c must contain the same value.
MOST_THREADS = 64

_SOURCE = Path(__file__).with_name("reduce.c")
_FLAGS = ("-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC")
#: Time limit of the compiler in seconds.
_COMPILE_S = 60


class Engine(ctypes.Structure):
    """The public fields of `struct engine` in reduce.c."""

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
    """The fields of `struct queues` in reduce.c."""

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


#: Names of the driver's functions that the first fields of `Queues` point to.
DRIVER_FUNCTIONS = {
    "wait": "cuStreamWaitValue32_v2",
    "write": "cuStreamWriteValue32_v2",
    "out": "cuMemcpyDtoHAsync_v2",
    "into": "cuMemcpyHtoDAsync_v2",
}


def new_queues() -> Queues | None:
    """Make `Queues` that point to the driver's functions; None if the driver lacks these functions."""
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
    """Return the compiled reduce.c; None if there is no compiler or the compilation fails."""
    compiler = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    try:
        version = subprocess.run([compiler, "--version"], capture_output=True, timeout=_COMPILE_S, check=True).stdout
        # The file name depends on the processor, because machines with different processors may share this directory.
        inputs = (_SOURCE.read_bytes(), version, " ".join(_FLAGS).encode(), _processor().encode())
        name = f"reduce-{hashlib.sha256(b'|'.join(inputs)).hexdigest()[:24]}.so"
        cache = _private_cache()
        if cache is None:
            with tempfile.TemporaryDirectory(prefix="gpudiag-") as directory:
                return _load(_compile(compiler, Path(directory) / name))
        cached = cache / name
        return _load(cached if cached.is_file() and not cached.is_symlink() else _compile(compiler, cached))
    except (OSError, subprocess.SubprocessError):
        return None


def _compile(compiler: str, target: Path) -> Path:
    with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".part") as output:
        command = [compiler, *_FLAGS, str(_SOURCE), "-o", output.name]
        subprocess.run(command, capture_output=True, timeout=_COMPILE_S, check=True)
        os.link(output.name, compiled := f"{output.name}.so")  # unique, because all ranks compile at the same time
        Path(compiled).replace(target)
    return target


def _load(path: Path) -> ctypes.CDLL:
    """Load the library, and declare the argument types of its functions."""
    loaded = ctypes.CDLL(str(path))
    pointer = ctypes.c_void_p
    for name, arguments in {
        "gpudiag_reduce": [pointer, ctypes.c_uint32],
        "gpudiag_coordinate": [pointer],
        "gpudiag_submit": [pointer, ctypes.c_uint32],
        "gpudiag_stop": [pointer],
        "gpudiag_queue": [pointer, *[ctypes.c_uint64] * 3, ctypes.c_uint32],
        "gpudiag_engine_bytes": [],
        "gpudiag_has_float16": [],
    }.items():
        getattr(loaded, name).argtypes = arguments
    return loaded


def new_engine(loaded: ctypes.CDLL) -> tuple[Engine, ctypes.Array[ctypes.c_char]]:
    """Return an empty engine, and its memory. The caller must keep the memory as long as the engine."""
    memory = ctypes.create_string_buffer(loaded.gpudiag_engine_bytes() + LINE)
    begin = -(-ctypes.addressof(memory) // LINE) * LINE  # rounded up, because fields have their own cache lines
    return Engine.from_address(begin), memory


def _private_cache() -> Path | None:
    """Return a directory for compiled code to which only this user can write; None if there is none."""
    try:
        folder = cache_home(os.environ) / "gpudiag" / "native"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder if is_private(folder) and os.access(folder, os.W_OK) else None
    except (OSError, RuntimeError):
        return None


def _processor() -> str:
    """Return a text that identifies the processor's model and features."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "|".join(dict.fromkeys(line for line in text.splitlines() if line.startswith(wanted)))
