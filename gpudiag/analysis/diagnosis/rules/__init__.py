"""The rules, one file each: every class here that has a code and examines cases is one. Nothing else lists them."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module

from gpudiag.analysis.diagnosis.rules.rule import Rule


def _rules() -> Iterator[type[Rule]]:
    for found in pkgutil.iter_modules(__path__):
        module = import_module(f"{__name__}.{found.name}")
        for thing in vars(module).values():
            if (
                getattr(thing, "__module__", "") == module.__name__
                and hasattr(thing, "code")
                and hasattr(thing, "examine")
            ):
                yield thing


RULES: tuple[type[Rule], ...] = tuple(sorted(_rules(), key=lambda rule: rule.order))
