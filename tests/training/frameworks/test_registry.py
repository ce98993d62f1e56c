"""Test the descriptions of frameworks for programs that import none, and that no other code compares their names."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import gpudiag
from gpudiag.errors import UsageError
from gpudiag.model.job import DEFAULT_FRAMEWORK
from gpudiag.training.frameworks.registry import FRAMEWORKS, framework_named, framework_option
from gpudiag.training.frameworks.runtimes import load_runtime
from gpudiag.training.strategies.registry import default_strategy, strategy_entry

if TYPE_CHECKING:
    from gpudiag.training.frameworks.framework import Framework

HOME = Path(gpudiag.__file__).parent
NAMES = {*FRAMEWORKS, *(framework.package for framework in FRAMEWORKS.values())}


@pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=lambda framework: framework.name)
def test_framework_and_runtime_exist_and_name_existing_programs(framework: Framework) -> None:
    assert load_runtime(framework.name).framework == framework.name
    assert framework_option(framework.package) is framework
    assert framework.memory_format in framework.cpu_memory_formats
    for program in (framework.trainer, framework.fault_job):
        path = HOME.parent / Path(*program.partition(":")[0].split(".")).with_suffix(".py")
        assert f"def {program.partition(':')[2]}(" in path.read_text(encoding="utf-8")
    for on_gpus in (False, True):
        name = default_strategy(framework.name, on_gpu=on_gpus)
        assert strategy_entry(name, framework.name).name == name
        assert on_gpus or not strategy_entry(name, framework.name).needs_gpu


def test_unknown_framework_is_refused_with_list() -> None:
    for find, there in ((framework_named, "pytorch"), (framework_option, "torch"), (load_runtime, "pytorch")):
        with pytest.raises(UsageError) as raised:
            find("jax")
        assert f"There are: {there}, tensorflow." in raised.value.hint
    assert next(iter(FRAMEWORKS)) == DEFAULT_FRAMEWORK


def test_no_other_code_compares_framework_names() -> None:
    compared = [
        f"{path.relative_to(HOME)}:{node.lineno}"
        for path in HOME.rglob("*.py")
        if not path.is_relative_to(HOME / "training" / "frameworks")
        if b"framework" in path.read_bytes().lower()
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Compare)
        and any(isinstance(leaf, ast.Constant) and leaf.value in NAMES for leaf in ast.walk(node))
        and any("framework" in ast.unparse(side).lower() for side in (node.left, *node.comparators))
    ]
    assert compared == []
