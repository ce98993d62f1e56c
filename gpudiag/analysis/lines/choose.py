"""Choose the line to change: the deepest line of the user in which most of an amount of time is spent."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.lines.times import ProcessTimes
from gpudiag.analysis.lines.walk import ROOT
from gpudiag.model.source_lines import SourceLocation

#: Minimum share of the time in the chosen line and below.
MOST = 0.5

Times = NDArray[np.float64]


def main_line(process: ProcessTimes, amounts: Times) -> int | None:
    """Return the deepest node with most of the amounts; None if that is no line of the user within the loop.

    Args:
        process: the lines of a process.
        amounts: float64[nodes], the amount in each line itself.
    """
    total = process.tree.with_callees(amounts)
    if total[ROOT] <= 0:
        return None
    node, least = ROOT, MOST * total[ROOT]
    children = process.tree.children()
    while below := [child for child in children.get(node, ()) if total[child] >= least]:
        node = max(below, key=lambda child: float(total[child]))
    node = _omitted_below(process, node, children)
    while node != ROOT and not is_users(process, node):
        node = process.tree.parent[node]
    in_loop = len(process.tree.path(node)) >= loop_depth(process)
    return node if node != ROOT and in_loop else None


def other_work(process: ProcessTimes, least_ns: float) -> list[int]:
    """Return the outermost lines of the user within the loop that do not train, and take `least_ns` per step or more.

    These are lines of the loop that neither fetch, compute nor update, and hooks in backward: functions that no other
    line calls, because checkpointing calls functions of the forward pass again.
    """
    tree = process.tree
    mean = process.total_ns.mean(axis=1)
    depth = loop_depth(process)
    paths = {node: tree.path(node) for node in range(1, len(tree.parent))}
    kinds = {node: [tree.kind(above) for above in path] for node, path in paths.items()}
    training = {node: any(kind in {"forward", "optimizer", "input"} for kind in kinds[node]) for node in paths}
    forward = {tree.position[node][0] for node in paths if training[node] and "backward" not in kinds[node]}
    trains = {above for node, path in paths.items() if tree.kind(node) != "other" for above in path}
    chosen: list[int] = []
    for node, path in paths.items():  # a caller is always before its callees
        if len(path) < depth or mean[node] < least_ns or training[node] or not is_users(process, node):
            continue
        if node in trains or any(above in chosen for above in path):
            continue
        code = process.log.codes[tree.position[node][0]]
        in_backward = "backward" in kinds[node]
        if in_backward and (tree.position[node][0] in forward or code.function.endswith("backward")):
            continue
        chosen.append(node)
    return chosen


def path_of(process: ProcessTimes, node: int) -> tuple[tuple[str, int], ...]:
    """Return (file, line) of the lines from the program's first to this one."""
    tree, codes = process.tree, process.log.codes
    return tuple((codes[tree.position[above][0]].file, tree.position[above][1]) for above in tree.path(node))


def location(process: ProcessTimes, node: int) -> SourceLocation:
    """Return where a line is."""
    code, line = process.tree.position[node]
    function = process.log.codes[code]
    return SourceLocation(
        file=shortened(function.file, process.log.directory),
        line=line,
        function="" if function.function == "<module>" else function.function,
        text=process.log.texts.get(function.file, {}).get(str(line), "").strip(),
    )


def shortened(file: str, directory: str) -> str:
    """Return a path relative to the program's directory if it lies below, a notebook's cell by its number."""
    if directory and file.startswith(directory.rstrip("/") + "/"):
        return file[len(directory.rstrip("/")) + 1 :]
    return os.path.normpath(file) if file and not file.startswith("<") else file


def is_users(process: ProcessTimes, node: int) -> bool:
    """Return whether a line is the user's, and not of a library that drives the loop."""
    return process.log.codes[process.tree.position[node][0]].own


def loop_depth(process: ProcessTimes) -> int:
    """Return the depth of the loop's lines.

    The loop is in the innermost frame that is on the stack of the optimizer's step and is not left between steps. If
    that is a frame of a library, the lines are those of the user below it.
    """
    stack, frames = process.log.stack, process.frames
    if not frames:
        return min(1, len(stack))
    return frames if process.log.codes[stack[frames - 1][0]].own else frames + 1


def _omitted_below(process: ProcessTimes, node: int, children: dict[int, list[int]]) -> int:
    """Return the line below that has most of a line's time and was omitted from the recorded steps."""
    mean = process.total_ns.mean(axis=1) if process.steps else np.zeros(len(process.tree.parent))
    while True:
        omitted = [child for child in children.get(node, ()) if child in process.omitted]
        best = max(omitted, key=lambda child: float(mean[child]), default=None)
        if best is None or sum(mean[child] for child in omitted) < MOST * mean[node]:
            return node
        node = best
