"""Test inspection of an interpreter without importing a framework."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from gpudiag.errors import FrameworkMissingError, UsageError
from gpudiag.training.launch import inspect_interpreter

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes


def test_current_interpreter_is_inspected() -> None:
    import importlib.metadata

    interpreter = inspect_interpreter(sys.executable)
    assert interpreter.framework.partition("+")[0] == importlib.metadata.version("torch").partition("+")[0]
    assert interpreter.has_gpudiag
    assert interpreter.version.startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert "torch" not in sys.modules or interpreter.cuda == sys.modules["torch"].version.cuda


@pytest.mark.parametrize(("framework", "title"), [("pytorch", "PyTorch"), ("tensorflow", "TensorFlow")])
def test_interpreter_without_framework_is_refused(tmp_path: Path, framework: str, title: str) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(FrameworkMissingError, match=f"has no {title}"):
        inspect_interpreter(str(bare), framework)


@pytest.mark.parametrize("path", ["/does/not/exist", "/bin/true", "/"])
def test_program_that_is_no_python_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="--python"):
        inspect_interpreter(path)
