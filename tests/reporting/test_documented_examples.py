"""The examples in docstrings are run, so that they stay true."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = ("figures", "kernel_names", "printable")


@pytest.mark.parametrize("name", MODULES)
def test_examples_hold(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"gpudiag.reporting.{name}"))
    assert result.attempted
    assert not result.failed
