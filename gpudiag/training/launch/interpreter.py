"""Ask a Python interpreter for its version and packages, without importing a framework in any process."""

from __future__ import annotations

import os
import subprocess

import msgspec

from gpudiag.errors import FrameworkMissingError, UsageError
from gpudiag.training.frameworks.registry import framework_named

#: Program that the interpreter runs. `%s` is replaced by the framework's `question`, which sets further keys of
#: `answer`. The program removes the current directory from the import path, so that modules there do not hide Python's
#: own modules. `python -P` does the same, but only from Python 3.11 on.
_QUESTION = """
import sys
del sys.path[0]
import importlib.metadata, importlib.util, json, os, platform, re
def has(name):
    try: return importlib.util.find_spec(name)
    except (ImportError, ValueError): return None
def text(folder, name):
    try: return open(os.path.join(folder, name)).read()
    except OSError: return ""
answer = {"version": platform.python_version(), "framework": None, "cuda": None, "lacks": None,
          "msgspec": has("msgspec") is not None, "gpudiag": has("gpudiag") is not None}
%s
print(json.dumps(answer))
"""

#: Time limit of the program in seconds.
_TIMEOUT_S = 60


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """A Python interpreter that can train.

    Attributes:
        version: version of Python.
        framework: version of the requested framework.
        cuda: version of CUDA that the framework was built for; None if it was built without CUDA.
        has_gpudiag: True if gpudiag is installed for this interpreter.
    """

    path: str
    version: str
    framework: str
    cuda: str | None
    has_gpudiag: bool


class _Answer(msgspec.Struct):
    version: str
    framework: str | None
    cuda: str | None
    lacks: str | None
    msgspec: bool
    gpudiag: bool


def inspect_interpreter(path: str, framework: str = "pytorch") -> Interpreter:
    """Return a description of the interpreter at `path`: its versions of Python, the framework and CUDA.

    Raises:
        UsageError: the interpreter cannot be run, or is not Python.
        FrameworkMissingError: the interpreter lacks the framework, or a dependency of the training processes.
    """
    requested = framework_named(framework)
    command = [path, "-c", _QUESTION % requested.question]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    try:
        process = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False, env=environment)
        answer = msgspec.json.decode(process.stdout, type=_Answer)
    except OSError as error:
        raise UsageError(
            f"--python: {path} cannot be run: {error.strerror}", "Give the path of a Python interpreter."
        ) from error
    except (subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        raise UsageError(f"--python: {path} does not answer as Python does", "Give a Python interpreter.") from error
    this_python = f"{path} (Python {answer.version})"
    if answer.framework is None or answer.lacks is not None:
        raise FrameworkMissingError(
            f"{this_python} has no {answer.lacks or requested.title}",
            f"Install it there (in a clone: pip install '.[{requested.package}]') or choose another (--python).",
        )
    if not answer.msgspec:
        raise FrameworkMissingError(
            f"{this_python} lacks msgspec, which gpudiag needs to write its records",
            f"Install it there: {path} -m pip install msgspec nvtx",
        )
    return Interpreter(
        path=path, version=answer.version, framework=answer.framework, cuda=answer.cuda, has_gpudiag=answer.gpudiag
    )
