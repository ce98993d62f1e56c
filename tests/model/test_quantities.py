"""Test that JSON files with invalid times, sizes or counts are refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpudiag.errors import UnreadableInputError
from gpudiag.machine.facts_file import decode_facts
from gpudiag.model.analysis import ANALYSIS_SCHEMA, Analysis
from gpudiag.model.benchmarks.prediction import GRADIENTS_SCHEMA, Gradients
from gpudiag.model.run import RUN_SCHEMA, RunRecord
from gpudiag.model.run_directory import read_json
from tests import builders
from tests.model.test_run_directory import record

if TYPE_CHECKING:
    from collections.abc import Iterator

FACTS = Path(__file__).parents[1] / "machines" / "h200x4.json"
GRADIENTS = {
    "schema": GRADIENTS_SCHEMA,
    "sizes": [4000, 8000],
    "ready": [0.5, 1.0],
    "compute": {"forward_ms": 1.0, "backward_ms": 2.0, "update_ms": 0.5, "step_ms": 4.0},
}
NOUNS: dict[str, tuple[Any, Any, str]] = {
    "analysis": (json.loads(msgspec.json.encode(builders.late_loader())), Analysis, ANALYSIS_SCHEMA),
    "run": (json.loads(msgspec.json.encode(record())), RunRecord, RUN_SCHEMA),
    "gradients": (GRADIENTS, Gradients, GRADIENTS_SCHEMA),
}
MAY_BE_ANYTHING = {"evidence"}


def figures(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of all numbers in a tree."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in inner:
        if key not in MAY_BE_ANYTHING:
            yield from figures(value, (*path, key))
    if isinstance(node, (int, float)) and not isinstance(node, bool):
        yield path


def changed(document: Any, path: tuple[str | int, ...], value: float) -> Any:
    copy = json.loads(json.dumps(document))
    node = copy
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return copy


@pytest.mark.parametrize("name", NOUNS)
def test_negative_and_unreal_figures_are_refused(name: str, tmp_path: Path) -> None:
    document, noun, schema = NOUNS[name]
    file = tmp_path / f"{name}.json"
    file.write_text(json.dumps(document))
    assert read_json(file, noun, schema)
    for path in figures(document):
        for value in (-5, 1e308, 10**30):
            file.write_text(json.dumps(changed(document, path, value)))
            with pytest.raises(UnreadableInputError) as refusal:
                read_json(file, noun, schema)
            assert "\n" not in str(refusal.value)


def test_negative_and_unreal_facts_are_refused() -> None:
    document = json.loads(FACTS.read_text(encoding="utf-8"))
    for path in list(figures(document))[::17]:
        for value in (1e308, 10**30):
            with pytest.raises(UnreadableInputError):
                decode_facts(json.dumps(changed(document, path, value)).encode())
    with pytest.raises(UnreadableInputError, match=r"gb_per_s"):
        decode_facts(json.dumps(changed(document, ("bandwidth", 0, "gb_per_s"), -1)).encode())
