"""Test which modules are shown, and that their times sum to those of all modules."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.model.analysis import Modules, ModuleTime
from gpudiag.report import figures
from gpudiag.report.module_rows import MODULE_COLUMNS, module_cells, module_rows, rest_of_modules
from tests import builders
from tests.builders import module


def shown(modules: Modules, most: int) -> dict[str, float]:
    rows, _ = module_rows(modules, most)
    assert [row.ms for row in rows] == sorted((row.ms for row in rows), reverse=True)
    return {row.label.replace(figures.TIMES, "x"): round(row.ms, 3) for row in rows}


def test_repeated_blocks_share_a_row_and_the_largest_is_split() -> None:
    modules = builders.gpt_modules()
    few = {"blocks.*.attention (12 x Attention)": 18.0, "blocks.*.mlp (12 x Sequential)": 10.8, "head (Linear)": 5.4}
    assert shown(modules, 3) == few
    assert shown(modules, 7) == few | {
        "blocks.* (12 x Block), self": 3.6,
        "blocks.*.norm (12 x LayerNorm)": 3.6,
        "GPT, self": 1.5,
        "tokens (Embedding)": 0.6,
    }
    all_parts = {
        "blocks.*.attention (12 x Attention), self": 9.0,
        "blocks.*.attention.qkv (12 x Linear)": 9.0,
        "blocks.*.mlp.0 (12 x Linear)": 5.4,
        "blocks.*.mlp.2 (12 x Linear)": 5.4,
        "head (Linear)": 5.4,
        "blocks.* (12 x Block), self": 3.6,
        "blocks.*.norm (12 x LayerNorm)": 3.6,
        "GPT, self": 1.5,
        "tokens (Embedding)": 0.6,
    }
    assert shown(modules, 20) == all_parts
    rows, rest = module_rows(modules, 20)
    assert rest == pytest.approx(0.15), "the loss is too short for a row"
    assert rest_of_modules(modules, rest) == [
        "and 0.15 ms in other modules, 4.20 ms outside of modules (optimizer, loss)"
    ]
    assert dict(zip(MODULE_COLUMNS, module_cells(rows[-3]), strict=True)) == {
        "module": f"blocks.*.norm (12 {figures.TIMES} LayerNorm)",
        "ms per step": "3.60",
        "forward": "1.20",
        "backward": "2.40",
        "calls": "12",
    }


def test_block_slower_than_its_siblings_has_its_own_row() -> None:
    blocks = [module(f"{number}", 9.0 if number == 3 else 1.0, 0, kind="Block", own=0) for number in range(5)]
    layers = [module(f"{number}.fc", 9.0 if number == 3 else 1.0, 0) for number in range(5)]
    modules = Modules(times=(module("", 13.0, 0, kind="Net", own=0), *blocks, *layers))
    assert shown(modules, 5) == {"GPT.3.fc (Linear)": 9.0, "GPT.*.fc (4 x Linear)": 4.0}


def test_layers_without_children_are_not_repeated_blocks() -> None:
    layers = [module(f"{number}", 1.0 + number, 0) for number in range(3)]
    modules = Modules(times=(module("", 6.0, 0, kind="Sequential", own=0), *layers))
    assert shown(modules, 5) == {
        "GPT.2 (Linear)": 3.0,
        "GPT.1 (Linear)": 2.0,
        "GPT.0 (Linear)": 1.0,
    }


def test_paths_of_several_models_begin_with_the_root() -> None:
    times = [
        module_time
        for root in ("Generator", "Critic")
        for module_time in (module("", 4.0, 0, root=root, kind=root, own=0.25), module("fc", 3.0, 0, root=root))
    ]
    assert shown(Modules(times=tuple(times)), 9) == {
        "Generator.fc (Linear)": 3.0,
        "Critic.fc (Linear)": 3.0,
        "Generator, self": 1.0,
        "Critic, self": 1.0,
    }


Nested: TypeAlias = "tuple[float, float, list[Nested]]"

#: A module: (self time in forward, self time in backward, nested modules).
NESTED: st.SearchStrategy[Nested] = st.recursive(
    st.tuples(st.floats(0, 9), st.floats(0, 9), st.just([])),
    lambda inner: st.tuples(st.floats(0, 9), st.floats(0, 9), st.lists(inner, max_size=3)),
    max_leaves=12,
)


@given(nested=NESTED, most=st.integers(1, 12), devices=st.integers(1, 3))
def test_rows_and_rest_sum_to_all_modules(nested: Nested, most: int, devices: int) -> None:
    times: list[ModuleTime] = []
    total = add(times, nested, "")
    # The devices get different shares of each time, whose mean over devices stays the same.
    spread = tuple(
        msgspec.structs.replace(
            time,
            **{
                name: tuple(
                    getattr(time, name)[0] * 2 * device / (devices - 1) if devices > 1 else getattr(time, name)[0]
                    for device in range(devices)
                )
                for name in ("forward_ms", "backward_ms", "own_forward_ms", "own_backward_ms")
            },
        )
        for time in times
    )
    rows, rest = module_rows(Modules(times=spread), most)
    assert len(rows) <= most
    assert sum(row.ms for row in rows) + rest == pytest.approx(total, abs=1e-6)
    assert len({row.label for row in rows}) == len(rows)


def add(times: list[ModuleTime], nested: Nested, path: str) -> float:
    """Add a module and its children to `times`; return the sum of their forward and backward times."""
    forward, backward, inner = nested
    position = len(times)
    below = sum(add(times, child, f"{path}.{index}" if path else f"{index}") for index, child in enumerate(inner))
    leaf = module(path, forward, backward, kind=f"Kind{path.count('.')}")
    whole = {"forward_ms": (forward + below / 2,), "backward_ms": (backward + below / 2,)}
    times.insert(position, msgspec.structs.replace(leaf, **whole))
    return forward + backward + below


def test_invalid_times_count_as_zero() -> None:
    hostile = builders.hostile().modules
    assert hostile is not None
    rows, rest = module_rows(hostile, 5)
    assert ([row.ms for row in rows], rest) == ([3.0, 2.0], 0.0)
    assert all("\x1b" not in cell for row in rows for cell in module_cells(row))
    assert module_rows(Modules(times=()), 5) == ([], 0.0)
