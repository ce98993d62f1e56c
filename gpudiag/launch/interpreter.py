"""What the training processes' interpreter has, found without importing a framework into this process or that one."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass

import msgspec

from gpudiag.errors import FrameworkMissingError, UsageError

#: Run by the interpreter in question. `torch/version.py` holds assignments only, so that reading it is cheap; importing
#: torch takes seconds.
_QUESTION = """
import importlib.util, json, platform, re, sys
def has(name):
    try: return importlib.util.find_spec(name)
    except (ImportError, ValueError): return None
torch = has("torch")
answer = {"version": platform.python_version(), "torch": None, "cuda": None,
          "msgspec": has("msgspec") is not None, "gpudiag": has("gpudiag") is not None}
if torch is not None and torch.submodule_search_locations:
    try:
        text = open(torch.submodule_search_locations[0] + "/version.py").read()
    except OSError:
        text = ""
    find = lambda name: re.search(r"^" + name + r"\\b[^=\\n]*=\\s*['\\"]([^'\\"]+)", text, re.M)
    version, cuda = find("__version__"), find("cuda")
    answer["torch"], answer["cuda"] = version and version[1] or "unknown", cuda and cuda[1]
print(json.dumps(answer))
"""

_PATIENCE_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python interpreter that can train.

    Attributes:
        path: as it was named.
        version: of Python.
        torch: version of PyTorch.
        cuda: version of CUDA that this PyTorch was built for; None where it was built without.
        has_gpudiag: it can import gpudiag by itself.
    """

    path: str
    version: str
    torch: str
    cuda: str | None
    has_gpudiag: bool


class _Answer(msgspec.Struct):
    version: str
    torch: str | None
    cuda: str | None
    msgspec: bool
    gpudiag: bool


def inspect_interpreter(path: str) -> Interpreter:
    """Ask an interpreter what it has.

    Raises:
        UsageError: it cannot be run, or is no Python.
        FrameworkMissingError: it has no PyTorch, or lacks what the training processes need beside it.
    """
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    try:
        done = subprocess.run(
            [path, "-c", _QUESTION], capture_output=True, timeout=_PATIENCE_S, check=False, env=environment
        )
        answer = msgspec.json.decode(done.stdout, type=_Answer)
    except OSError as error:
        raise UsageError(
            f"--python: {path} cannot be run: {error.strerror}", "Give the path of a Python interpreter."
        ) from error
    except (subprocess.TimeoutExpired, msgspec.DecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"--python: {path} does not answer as Python does", "Give a Python interpreter.") from error
    if answer.torch is None:
        raise FrameworkMissingError(
            f"{path} (Python {answer.version}) has no PyTorch",
            "Install it there (pip install 'gpudiag[torch]') or choose another interpreter with --python.",
        )
    if not answer.msgspec:
        raise FrameworkMissingError(
            f"{path} (Python {answer.version}) lacks msgspec, which records are written with",
            f"Install it there: {path} -m pip install msgspec nvtx",
        )
    return Interpreter(
        path=path,
        version=answer.version,
        torch=answer.torch,
        cuda=answer.cuda,
        has_gpudiag=answer.gpudiag,
    )
