"""Explain why training on several GPUs is slower than it should be, and what to change.

Example of a training loop:

    with gpudiag.profile("run-dir") as prof:
        for batch in prof.steps(loader):
            with gpudiag.range("augment"):
                ...

`gpudiag analyze run-dir`, or `gpudiag.analyze("run-dir")` in a notebook, then shows where each step's time went.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpudiag.app.python_api import analyze, compare, load_facts
    from gpudiag.training.loop.callbacks.keras import KerasCallback
    from gpudiag.training.loop.callbacks.lightning import LightningCallback
    from gpudiag.training.loop.callbacks.transformers import TransformersCallback
    from gpudiag.training.loop.session import Session as profile  # noqa: N813
    from gpudiag.training.loop.trace_handler import TraceHandler as trace_handler  # noqa: N813
    from gpudiag.training.session.ranges import Range as range  # noqa: A004, N813 # public name
    from gpudiag.training.strategies.pytorch.cpu_reduce import CpuReduceHook

    __version__: str

__all__ = [
    "CpuReduceHook",
    "KerasCallback",
    "LightningCallback",
    "TransformersCallback",
    "__version__",
    "analyze",
    "compare",
    "load_facts",
    "profile",
    "range",
    "trace_handler",
]

_LOCATIONS = {
    "CpuReduceHook": "gpudiag.training.strategies.pytorch.cpu_reduce:CpuReduceHook",
    "KerasCallback": "gpudiag.training.loop.callbacks.keras:KerasCallback",
    "LightningCallback": "gpudiag.training.loop.callbacks.lightning:LightningCallback",
    "TransformersCallback": "gpudiag.training.loop.callbacks.transformers:TransformersCallback",
    "analyze": "gpudiag.app.python_api:analyze",
    "compare": "gpudiag.app.python_api:compare",
    "load_facts": "gpudiag.app.python_api:load_facts",
    "profile": "gpudiag.training.loop.session:Session",
    "range": "gpudiag.training.session.ranges:Range",
    "trace_handler": "gpudiag.training.loop.trace_handler:TraceHandler",
}


def __getattr__(name: str) -> Any:
    """Load a public name at its first use, so that `import gpudiag` is fast."""
    if name == "__version__":
        return _version()
    if name not in _LOCATIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module, _, attribute = _LOCATIONS[name].partition(":")
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value  # later uses do not call __getattr__
    return value


def _version() -> str:
    # Importing importlib.metadata takes longer than the rest of `gpudiag --help`.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("gpudiag")
    except PackageNotFoundError:  # a source tree without installation
        return "0+unknown"


def __dir__() -> list[str]:
    return sorted(__all__)
