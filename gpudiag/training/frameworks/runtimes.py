"""Load the runtime of each framework in a training process, without importing the framework."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from gpudiag.errors import UsageError, there_are

if TYPE_CHECKING:
    from gpudiag.training.session.runtime import Runtime


def load_runtime(name: str | None = None) -> Runtime:
    """Return the runtime of a framework. Without a name, choose the framework that this process has imported.

    If the process has imported both frameworks or neither, choose PyTorch.

    Raises:
        UsageError: no framework has this name.
    """
    if name is None:
        name = "tensorflow" if "tensorflow" in sys.modules and "torch" not in sys.modules else "pytorch"
    if name not in _LOADERS:
        raise UsageError(f"there is no framework '{name}'", there_are(name, _LOADERS))
    return _LOADERS[name]()


def _load_pytorch() -> Runtime:
    from gpudiag.training.frameworks.pytorch.runtime import RUNTIME

    return cast("Runtime", RUNTIME)  # mypy cannot match FlopCounter because of an import cycle


def _load_tensorflow() -> Runtime:
    from gpudiag.training.frameworks.tensorflow.runtime import RUNTIME

    return RUNTIME


_LOADERS: dict[str, Callable[[], Runtime]] = {"pytorch": _load_pytorch, "tensorflow": _load_tensorflow}
