"""What the training processes' interpreter has, found without importing a framework into this process or that one."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from gpudiag.errors import FrameworkMissingError, UsageError

if TYPE_CHECKING:
    from gpudiag.model.job import Framework

#: Run by the interpreter in question. `torch/version.py` and TensorFlow's `build_info.py` hold assignments only, so
#: that reading them is cheap; importing either framework takes seconds.
_QUESTION = """
import importlib.metadata, importlib.util, json, os, platform, re, sys
def has(name):
    try: return importlib.util.find_spec(name)
    except (ImportError, ValueError): return None
torch = has("torch")
answer = {"version": platform.python_version(), "torch": None, "cuda": None,
          "tensorflow": None, "tensorflow_cuda": None, "keras": has("keras") is not None,
          "msgspec": has("msgspec") is not None, "gpudiag": has("gpudiag") is not None}
if torch is not None and torch.submodule_search_locations:
    try:
        text = open(torch.submodule_search_locations[0] + "/version.py").read()
    except OSError:
        text = ""
    find = lambda name: re.search(r"^" + name + r"\\b[^=\\n]*=\\s*['\\"]([^'\\"]+)", text, re.M)
    version, cuda = find("__version__"), find("cuda")
    answer["torch"], answer["cuda"] = version and version[1] or "unknown", cuda and cuda[1]
tensorflow = has("tensorflow")
if tensorflow is not None and tensorflow.submodule_search_locations:
    where = tensorflow.submodule_search_locations[0]
    answer["tensorflow"] = "unknown"
    for name in ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly"):
        try:
            answer["tensorflow"] = importlib.metadata.version(name)
            break
        except importlib.metadata.PackageNotFoundError:
            pass
    try:
        text = open(where + "/python/platform/build_info.py").read()
    except OSError:
        text = ""
    if re.search(r"is_cuda_build'?,\\s*True", text):
        cuda = re.search(r"cuda_version'?,\\s*'([^']+)'", text)
        answer["tensorflow_cuda"] = cuda[1] if cuda else "unknown"
print(json.dumps(answer))
"""

_PATIENCE_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python interpreter that can train.

    Attributes:
        path: as it was named.
        version: of Python.
        torch: version of PyTorch; "" where it was not asked for and is not there.
        cuda: version of CUDA that the framework asked for was built for; None where it was built without.
        tensorflow: version of TensorFlow; "" where it was not asked for and is not there.
        has_gpudiag: it can import gpudiag by itself.
    """

    path: str
    version: str
    torch: str
    cuda: str | None
    has_gpudiag: bool
    tensorflow: str = ""


class _Answer(msgspec.Struct):
    version: str
    torch: str | None
    cuda: str | None
    tensorflow: str | None
    tensorflow_cuda: str | None
    keras: bool
    msgspec: bool
    gpudiag: bool


def inspect_interpreter(path: str, framework: Framework = "pytorch") -> Interpreter:
    """Ask an interpreter what it has.

    Args:
        path: the interpreter.
        framework: what it must have.

    Raises:
        UsageError: it cannot be run, or is no Python.
        FrameworkMissingError: it has no such framework, or lacks what the training processes need beside it.
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
    if framework == "tensorflow":
        if answer.tensorflow is None or not answer.keras:
            raise FrameworkMissingError(
                f"{path} (Python {answer.version}) has no {'TensorFlow' if answer.tensorflow is None else 'Keras'}",
                "Install it there (pip install 'gpudiag[tensorflow]') or choose another interpreter with --python.",
            )
    elif answer.torch is None:
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
        torch=answer.torch or "",
        cuda=answer.tensorflow_cuda if framework == "tensorflow" else answer.cuda,
        tensorflow=answer.tensorflow or "",
        has_gpudiag=answer.gpudiag,
    )
