"""Provide examples of each finding, in a module named by the finding's code.

A module has `FIRES`, `SILENT` and, if the rule can abstain, `ABSTAINS`.

The tests of rules and the pages in docs/findings are made from these examples.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType


def examples_by_code(code: str) -> ModuleType:
    """Return the module with the examples of a finding code."""
    return importlib.import_module(f"tests.analysis.diagnosis.rule_examples.{code.replace('-', '_')}")


def every_example(code: str, *kinds: str) -> list[tuple[str, Any]]:
    """Return (description, job) of the examples of `kinds`, or of all kinds if none is given."""
    module = examples_by_code(code)
    return [example for kind in kinds or ("FIRES", "SILENT", "ABSTAINS") for example in getattr(module, kind, ())]
