"""Find CUPTI as a training process would, and try to register a profiler with it, in a child process."""

from __future__ import annotations

import os
import subprocess

import msgspec

from gpudiag.model.checkup.surroundings import CuptiSeen

#: Program that the interpreter runs, without a framework. The program searches the packages of NVIDIA and PyTorch,
#: conda, the loader's path and toolkits, in this order. A library that cannot be loaded is skipped.
_PROGRAM = r"""
import sys
del sys.path[0]
import ctypes, ctypes.util, glob, importlib.util, json, os
def folders(package, *below):
    try: spec = importlib.util.find_spec(package)
    except (ImportError, ValueError): return []
    roots = list(spec.submodule_search_locations or ()) if spec else []
    return [os.path.join(root, *below) for root in roots]
places = folders("nvidia", "cuda_cupti", "lib") + folders("nvidia", "cu*", "lib") + folders("torch", "lib")
places += [os.path.join(sys.prefix, "lib")] + os.environ.get("LD_LIBRARY_PATH", "").split(":")
places += ["/usr/local/cuda*/extras/CUPTI/lib64", "/usr/local/cuda*/lib64", "/usr/lib/*-linux-gnu", "/usr/lib64"]
paths = [path for place in places if place for path in sorted(glob.glob(os.path.join(place, "libcupti.so*")))]
answer = {"path": None, "version": None, "error": None}
library = None
for path in [*paths, ctypes.util.find_library("cupti")]:
    try: library = path and ctypes.CDLL(path)
    except OSError: continue
    if library:
        answer["path"] = path
        break
if library:
    version = ctypes.c_uint32()
    if library.cuptiGetVersion(ctypes.byref(version)) == 0: answer["version"] = version.value
    subscriber = ctypes.c_void_p()
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)(lambda *_: None)
    status = library.cuptiSubscribe(ctypes.byref(subscriber), callback, None)
    if status == 0:
        library.cuptiUnsubscribe(subscriber)
    else:
        name = ctypes.c_char_p()
        library.cuptiGetResultString(status, ctypes.byref(name))
        answer["error"] = name.value.decode(errors="replace") if name.value else "error %d" % status
print(json.dumps(answer))
"""


def find_cupti(python: str, limit_s: float) -> CuptiSeen:
    """Return the CUPTI that this interpreter finds, and the error if CUPTI refuses to register a profiler.

    Args:
        python: path of the interpreter.
        limit_s: time limit in seconds.

    Raises:
        OSError: the interpreter cannot be run.
        subprocess.TimeoutExpired: the library or its driver does not answer.
        ValueError: the program ended without an answer, for instance because the library crashed.
    """
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([python, "-c", _PROGRAM], capture_output=True, timeout=limit_s, check=False, env=environment)
    lines = done.stdout.splitlines()
    if not lines:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ValueError(f"exit code {done.returncode} {' '.join(last)}".strip())
    return msgspec.json.decode(lines[-1], type=CuptiSeen)
