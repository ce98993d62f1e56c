"""The formats that `gpudiag export` writes, a module each. A new one is one more module here, with its `FORMAT`."""

from __future__ import annotations

import importlib
import pkgutil

from gpudiag.errors import UsageError, there_are
from gpudiag.report.export.format import Format


def formats() -> dict[str, Format]:
    """Every format by its name."""
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    return {module.FORMAT.name: module.FORMAT for module in modules}


def format_named(name: str) -> Format:
    """The format of that name.

    Raises:
        UsageError: there is none.
    """
    known = formats()
    if name not in known:
        raise UsageError(f"there is no format '{name}'", there_are(name, known))
    return known[name]
