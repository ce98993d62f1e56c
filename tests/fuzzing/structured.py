"""Make mutants with the structure of real files. These mutants have impossible values of the right type, columns of
unequal lengths, ids that are paths, links, nested operators, or many threads.

The functions return the commands to run on the mutant; {} in a command is the mutant's directory.
"""

from __future__ import annotations

import copy
import json
import math
import random
from functools import cache
from pathlib import Path
from typing import Any

from gpudiag.app.analyze import analyze_with_step
from gpudiag.model.run_directory import encode_json
from tests.app.scale.points import measured

_TRACES = Path(__file__).parents[1] / "traces"
#: A file next to the mutant, which no command on the mutant may change.
VICTIM = "victim"

_FLOATS = (0.0, -0.0, 0.5, -1.0, 1.0, 1e-300, 1e-9, 1e3, 1e9, 1e12, 1e15, 1e300, math.nan, math.inf)
_WHOLE = (0, 1, -1, 2, 99, 2**20, 2**31, 2**50, 2**60, 2**62, 2**63 - 1)
_TEXTS = (
    *("", "../../victim", "/etc/passwd", "..", ".", "a/b", "x" * 5000, "\x1b]0;title\x07", "\u009b31m", "\u202eabc"),
    *("=cmd|' /C calc'!A0", "@SUM(1)", "<script>alert(1)</script>", "[a](javascript:b)", "`$(id)`", "|a|b|", "{{7*7}}"),
)

Command = tuple[str, ...]


def run_with_step(chance: random.Random, directory: Path) -> tuple[Command, ...]:
    """Write a run directory with an analysis and a step to draw; one of its files is a mutant."""
    files = {name: json.loads(text) for name, text in _analysed().items()}
    name = chance.choice(sorted(files))
    for _ in range(chance.choice((1, 1, 2, 5))):
        _replace(chance, files[name])
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    _links(chance, directory, ("analysis.json", "step.json", "report.html", "facts.json"))
    return (
        chance.choice(
            (
                ("report", "{}", "--html", "{}/../page.html"),
                ("report", "{}"),
                ("report", "{}/analysis.json", "--markdown", "-"),
                ("analyze", "{}/analysis.json", "--json"),
                ("report", "{}", "--csv", "-"),
                ("diff", "{}/analysis.json", "{}/analysis.json", "--json"),
                ("diff", "{}/analysis.json", "{}/analysis.json"),
            )
        ),
    )


def scaling(chance: random.Random, directory: Path) -> tuple[Command, ...]:
    """Write the directory of a scaling benchmark; some of its points are mutants."""
    for devices, strategy in ((1, "nccl"), (2, "nccl"), (4, "nccl"), (4, "independent")):
        point = measured(devices, 30.0, strategy=strategy)
        content = json.loads(encode_json(point))
        if chance.random() < 0.5:
            _replace(chance, content)
        folder = directory / "points" / point.id
        folder.mkdir(parents=True)
        (folder / "point.json").write_text(json.dumps(content))
        if chance.random() < 0.3:
            (folder / "profile").mkdir()
            for name, text in _analysed().items():
                (folder / "profile" / name).write_bytes(text)
            (folder / "profile" / "run.json").write_text("{}")
    _links(chance, directory, ("scaling.json", "scaling.csv", "scaling.md", "report.html", "points/linked"))
    return (
        chance.choice(
            (
                ("table", "{}"),
                ("table", "{}", "--json"),
                ("table", "{}", "--csv", "-"),
                ("table", "{}", "--form", "all"),
                ("scale", "--from", "{}"),
                ("scale", "--from", "{}", "--json"),
            )
        ),
    )


def threads(chance: random.Random, directory: Path) -> tuple[Command, ...]:
    """Write a trace of nested operators, or of operators on many threads, with or without steps."""
    count = chance.choice((1, 100, 3000))
    nested, of_threads = chance.random() < 0.5, chance.choice((1, 2, 1000))
    scale = chance.choice((1e-3, 1.0, 1e6, 1e12))
    events: list[dict[str, Any]] = [
        {
            "ph": "X",
            "cat": chance.choice(("cpu_op", "cuda_runtime", "kernel")),
            "name": f"op{n % 7}",
            "pid": 1,
            "tid": n % of_threads,
            "ts": n * scale,
            "dur": (2 * (count - n) if nested else chance.choice((0, 1, 2, -1))) * scale,
            "args": {"stream": n % 3, "device": n % chance.choice((1, 2, 40)), "correlation": n % 11},
        }
        for n in range(count)
    ]
    marks = chance.choice((0, 1, 5))
    length = count / max(1, marks)
    events += [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{n}",
            "pid": 1,
            "tid": 0,
            "ts": n * length * scale,
        }
        | {"dur": length * scale}
        for n in range(marks)
    ]
    (directory / "rank0.pt.trace.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return (chance.choice((("analyze", "{}"), ("analyze", "{}", "--json"), ("report", "{}", "--html", "-"))),)


def _replace(chance: random.Random, document: Any) -> None:
    """Replace a value by a different value of the same type, or change the length of a list."""
    leaves = list(_leaves(document))
    if not leaves:
        return
    place, key = chance.choice(leaves)
    before = place[key]
    if isinstance(before, bool):
        place[key] = not before
    elif isinstance(before, int):
        place[key] = chance.choice(_WHOLE)
    elif isinstance(before, float):
        place[key] = chance.choice(_FLOATS) if chance.random() < 0.7 else before * chance.choice((-1, 1e-6, 1e6))
    elif isinstance(before, str):
        place[key] = chance.choice(_TEXTS)
    elif isinstance(before, list):
        place[key] = chance.choice((before[:-1], before * 2, before * 200, []))
    if isinstance(place, list) and chance.random() < 0.2:
        place.append(copy.deepcopy(before))


def _leaves(document: Any) -> Any:
    """Yield (container, key) of every value that `_replace` can change: scalars and lists."""
    for key in list(document) if isinstance(document, dict) else range(len(document)):
        inner = document[key]
        if isinstance(inner, dict | list):
            if isinstance(inner, list):
                yield document, key
            yield from _leaves(inner)
        else:
            yield document, key


def _links(chance: random.Random, directory: Path, names: tuple[str, ...]) -> None:
    if chance.random() < 0.3:
        path = directory / chance.choice(names)
        path.unlink(missing_ok=True)
        path.symlink_to(directory.parent / VICTIM)


@cache
def _analysed() -> dict[str, bytes]:
    """Return the files of an intact run directory by name."""
    analysis, step = analyze_with_step([_TRACES / "clean"])
    assert step is not None
    return {
        "analysis.json": encode_json(analysis),
        "step.json": encode_json(step, indent=0),
        "facts.json": (_TRACES.parent / "machines" / "h200x4.json").read_bytes(),
    }
