"""Ask the training processes' interpreter for its packages, without importing a framework in any process."""

from __future__ import annotations

import os
import subprocess

import msgspec

from gpudiag.errors import FrameworkMissingError, UsageError
from gpudiag.training.frameworks.registry import framework_named

#: Program for the interpreter, which contains the framework's question.
#: Removes the current directory, which `-c` puts into the path, so that its modules do not hide Python's own. (`-P`
#: would do the same, but Python knows it from 3.11 on only.)
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

_PATIENCE_S = 60


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """A Python interpreter that can train.

    Attributes:
        version: of Python.
        framework: version of the framework asked for.
        cuda: version of CUDA that the framework was built for; None if it was built without.
        has_gpudiag: it can import gpudiag by itself.
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
    """Return what the interpreter at this path has.

    Raises:
        UsageError: the interpreter cannot be run, or is not Python.
        FrameworkMissingError: the interpreter lacks the framework, or a dependency of the training processes.
    """
    wanted = framework_named(framework)
    command = [path, "-c", _QUESTION % wanted.question]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, check=False, env=environment)
        answer = msgspec.json.decode(done.stdout, type=_Answer)
    except OSError as error:
        raise UsageError(
            f"--python: {path} cannot be run: {error.strerror}", "Give the path of a Python interpreter."
        ) from error
    except (subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        raise UsageError(f"--python: {path} does not answer as Python does", "Give a Python interpreter.") from error
    this_python = f"{path} (Python {answer.version})"
    if answer.framework is None or answer.lacks is not None:
        raise FrameworkMissingError(
            f"{this_python} has no {answer.lacks or wanted.title}",
            f"Install it there (in a clone: pip install '.[{wanted.package}]') or choose another (--python).",
        )
    if not answer.msgspec:
        raise FrameworkMissingError(
            f"{this_python} lacks msgspec, which records are written with",
            f"Install it there: {path} -m pip install msgspec nvtx",
        )
    return Interpreter(
        path=path, version=answer.version, framework=answer.framework, cuda=answer.cuda, has_gpudiag=answer.gpudiag
    )
