"""Run the examples in docstrings."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = ("report.figures", "report.kernel_names", "model.sanitize")


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_are_correct(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"gpudiag.{name}"))
    assert result.attempted
    assert not result.failed
