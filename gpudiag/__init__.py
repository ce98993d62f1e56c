"""gpudiag: says why training on several GPUs is slower than it should be, and what to change."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("gpudiag")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
