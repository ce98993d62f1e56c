"""gpudiag: says why training on several GPUs is slower than it should be, and what to change.

In a training loop of your own:

    with gpudiag.profile("run-dir") as prof:
        for batch in prof.steps(loader):
            with gpudiag.range("augment"):
                ...

`gpudiag analyze run-dir` then says where each step's time went.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpudiag.worker.ranges import Range as range  # noqa: A004  # the public name says what it is
    from gpudiag.worker.session import Session as profile  # noqa: N813  # it is used as a verb

__all__ = ["__version__", "profile", "range"]

try:
    __version__ = version("gpudiag")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    """Load the public names when they are first used: `import gpudiag` costs nothing."""
    if name == "profile":
        from gpudiag.worker.session import Session

        return Session
    if name == "range":
        from gpudiag.worker.ranges import Range

        return Range
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
