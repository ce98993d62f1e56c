"""List the frameworks, for programs that start training processes."""

from __future__ import annotations

from gpudiag.errors import UsageError, there_are
from gpudiag.training.frameworks.framework import Framework
from gpudiag.training.frameworks.pytorch.framework import PyTorch
from gpudiag.training.frameworks.tensorflow.framework import TensorFlow

#: Frameworks by their names in records. The first framework is the default.
FRAMEWORKS: dict[str, Framework] = {framework.name: framework for framework in (PyTorch(), TensorFlow())}


def framework_named(name: str) -> Framework:
    """Return the framework of this name in records; raise UsageError, with all names as hint, if there is none."""
    if name not in FRAMEWORKS:
        raise UsageError(f"there is no framework '{name}'", there_are(name, FRAMEWORKS))
    return FRAMEWORKS[name]


def framework_option(value: str) -> Framework:
    """Return the framework for a value of `--framework`, which is the name of its package.

    Raise UsageError if no framework has this package; the hint lists all packages.
    """
    by_package = {framework.package: framework for framework in FRAMEWORKS.values()}
    if value not in by_package:
        raise UsageError(f"--framework knows no '{value}'", there_are(value, by_package))
    return by_package[value]
