"""Check that analysis uses names of events only to show them, except in the readers."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

import gpudiag
from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.attribution.summary import summarise_collectives, summarise_kernels, summarise_portions
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.analysis.timeline import build_timeline
from gpudiag.report.export.assemble import export_model_of
from gpudiag.trace import read_traces

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpudiag.model.event import Trace

TRACES = Path(__file__).parents[1] / "traces"
#: Folders of gpudiag.analysis whose modules must not inspect names.
FOLDERS = ("timeline", "attribution", "diagnosis", "comparison", "scaling")
SOURCES = Path(gpudiag.__file__).parent
JOBS = ("clean", "slow_loader_rank2", "vgg_p2poff", "tiny", "resnet50_dataloader", "gloo_dataloader", "tensorflow")


def modules() -> list[Path]:
    folders = [SOURCES / "analysis" / name for name in FOLDERS]
    return sorted(path for folder in (*folders, SOURCES / "report" / "export") for path in folder.rglob("*.py"))


def in_disguise(traces: Sequence[Trace], key: str) -> tuple[Trace, ...]:
    """Rename every event to a number between two copies of `key`, equal on all ranks, and keep the order of names."""
    order = {name: rank for rank, name in enumerate(sorted({name for trace in traces for name in trace.events.names}))}
    return tuple(
        replace(
            trace,
            events=replace(trace.events, names=tuple(f"{key}{order[name]:06d}{key}" for name in trace.events.names)),
        )
        for trace in traces
    )


def conclusions(traces: Sequence[Trace]) -> bytes:
    """Return all conclusions about a job, as JSON."""
    timeline = build_timeline(traces)
    attribution = attribute(timeline)
    case = Case(timeline=timeline, attribution=attribution, run=None, facts=None)
    tracks = [
        (track.title, track.start, track.event_kind, track.step)
        for group in export_model_of(timeline, attribution, timeline.traces).groups
        for track in group.tracks
    ]
    return msgspec.json.encode(
        (
            [device_track.buckets_ns.tolist() for device_track in attribution.tracks],
            diagnose(case),
            summarise_kernels(timeline),
            summarise_portions(timeline, attribution),
            summarise_collectives(timeline),
            tracks,
        ),
        enc_hook=lambda value: value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value),
    )


@pytest.mark.long
@pytest.mark.parametrize("job", JOBS)
def test_renamed_events_give_the_same_conclusions(job: str) -> None:
    traces = read_traces([TRACES / job])
    first, second = (conclusions(in_disguise(traces, key)) for key in ("#", "@"))
    assert first.replace(b"#", b"@") == second.replace(b"#", b"@")
    # With the recorded names all values except texts equal the values with new names.
    assert figures(conclusions(traces)) == figures(first)


def figures(concluded: bytes) -> object:
    """Remove the texts and the keys from conclusions, because both may show names."""

    def bare(value: object) -> object:
        if isinstance(value, dict):
            return sorted((bare(inner) for inner in value.values()), key=repr)
        if isinstance(value, list):
            return [bare(inner) for inner in value]
        return "" if isinstance(value, str) else value

    return bare(msgspec.json.decode(concluded))


@pytest.mark.parametrize("module", modules(), ids=lambda path: path.relative_to(SOURCES).as_posix())
def test_no_module_inspects_names(module: Path) -> None:
    tree = ast.parse(module.read_text(encoding="utf-8"))
    assert [ast.unparse(node) for node in looks(tree)] == []


def looks(tree: ast.AST) -> Iterator[ast.AST]:
    """Find code that inspects an event's name: comparisons, searches, and method calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(is_name(side) for side in (node.left, *node.comparators)):
            yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            into_text = node.func.attr in {"startswith", "endswith", "find", "split", "partition", "lower", "replace"}
            matches = node.func.attr in {"match", "search", "fullmatch", "findall"}
            if (into_text and is_name(node.func.value)) or (matches and any(map(is_name, node.args))):
                yield node


def is_name(node: ast.AST) -> bool:
    """Recognize `events.name_of(row)` and `events.names[index]`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "name_of"
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "names"


@pytest.mark.parametrize(
    "line",
    [
        "x = events.name_of(row).startswith('c10d::')",
        "x = 'ageable' in events.name_of(row)",
        "x = PATTERN.match(events.names[i])",
        "x = events.names[i] == 'ProfilerStep#3'",
    ],
)
def test_check_detects_inspection_of_names(line: str) -> None:
    assert len(list(looks(ast.parse(line)))) == 1


def test_remaining_patterns_are_not_for_event_names() -> None:
    with_patterns = {path.name for path in modules() if "re" in imported(path)}
    # The remaining patterns are for names of planes in TensorFlow's file, and of TensorBoard directories.
    assert with_patterns <= {"xspace.py", "log_directory.py"}


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
