"""The frameworks that there are."""

from __future__ import annotations

import importlib
import sys
from typing import cast

from gpudiag.errors import UsageError, there_are
from gpudiag.training.frameworks.framework import Framework
from gpudiag.training.frameworks.pytorch.framework import PyTorch
from gpudiag.training.frameworks.tensorflow.framework import TensorFlow
from gpudiag.training.session.runtime import Runtime

#: By their names in records. The first is meant where nothing says which.
FRAMEWORKS: dict[str, Framework] = {framework.name: framework for framework in (PyTorch(), TensorFlow())}


def framework_named(name: str) -> Framework:
    """The framework of this name in records.

    Raises:
        UsageError: there is no such framework; the hint lists those that there are.
    """
    if name not in FRAMEWORKS:
        raise UsageError(f"there is no framework '{name}'", there_are(name, FRAMEWORKS))
    return FRAMEWORKS[name]


def framework_option(value: str) -> Framework:
    """What `--framework` asks for.

    Raises:
        UsageError: there is no such framework; the hint lists those that there are.
    """
    by_package = {framework.package: framework for framework in FRAMEWORKS.values()}
    if value not in by_package:
        raise UsageError(f"--framework knows no '{value}'", there_are(value, by_package))
    return by_package[value]


def load_runtime(name: str | None = None) -> Runtime:
    """What runs in a training process of this framework, or of the one that this process has imported.

    Raises:
        UsageError: there is no such framework.
    """
    if name is None:
        imported = [framework.name for framework in FRAMEWORKS.values() if framework.package in sys.modules]
        name = (imported or list(FRAMEWORKS))[0]
    module = importlib.import_module(f"gpudiag.training.frameworks.{framework_named(name).name}.runtime")
    return cast("Runtime", module.RUNTIME)
