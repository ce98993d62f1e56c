"""Choose the line to report: the user's deepest line that takes, with its callees, most of a given time."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.lines.times import ProcessTimes
from gpudiag.analysis.lines.walk import ROOT
from gpudiag.model.source_lines import SourceLocation

#: Minimum share of the time in the chosen line and its callees.
MOST = 0.5

Times = NDArray[np.float64]


def main_line(process: ProcessTimes, amounts: Times) -> int | None:
    """Return the node of the user's deepest line in the loop that takes, with callees, most of the time; None if none.

    Find the deepest line of any code that takes `MOST` of the time, go down to lines that the log omits, then up to the
    caller in the user's code.

    Args:
        process: the lines of one process.
        amounts: float64[nodes], time in each line itself, in any unit.
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
    """Return the user's outermost lines in the loop that do other work than training for at least `least_ns` per step.

    Training is fetching input, forward, backward and update. Functions that backward calls (hooks) are other work,
    unless forward calls them too, because activation checkpointing repeats forward calls in backward.
    """
    tree = process.tree
    mean = process.total_ns.mean(axis=1)
    depth = loop_depth(process)
    paths = {node: tree.path(node) for node in range(1, len(tree.parent))}
    kinds = {node: [tree.kind(above) for above in path] for node, path in paths.items()}
    training = {node: any(kind in {"forward", "optimizer", "input"} for kind in kinds[node]) for node in paths}
    forward = {tree.position[node][0] for node in paths if training[node] and "backward" not in kinds[node]}
    # Lines that call training, directly or indirectly: they take most of the step, but are not other work.
    trains = {above for node, path in paths.items() if tree.kind(node) != "other" for above in path}
    chosen: list[int] = []
    for node, path in paths.items():  # a caller is always before its callees
        if len(path) < depth or mean[node] < least_ns or training[node] or not is_users(process, node):
            continue
        if node in trains or any(above in chosen for above in path):
            continue
        code = process.log.codes[tree.position[node][0]]
        in_backward = "backward" in kinds[node]
        # A function named "backward" is the backward pass of a custom autograd function, which is training.
        if in_backward and (tree.position[node][0] in forward or code.function.endswith("backward")):
            continue
        chosen.append(node)
    return chosen


def path_of(process: ProcessTimes, node: int) -> tuple[tuple[str, int], ...]:
    """Return (file, line) of each line on the call stack, from the outermost line to the node's line."""
    tree, codes = process.tree, process.log.codes
    return tuple((codes[tree.position[above][0]].file, tree.position[above][1]) for above in tree.path(node))


def location(process: ProcessTimes, node: int) -> SourceLocation:
    """Return the source location of a line."""
    code, line = process.tree.position[node]
    function = process.log.codes[code]
    return SourceLocation(
        file=shortened(function.file, process.log.directory),
        line=line,
        function="" if function.function == "<module>" else function.function,
        text=process.log.texts.get(function.file, {}).get(str(line), "").strip(),
    )


def shortened(file: str, directory: str) -> str:
    """Return the path relative to `directory` if it is inside; names of notebook cells stay unchanged."""
    if directory and file.startswith(directory.rstrip("/") + "/"):
        return file[len(directory.rstrip("/")) + 1 :]
    return os.path.normpath(file) if file and not file.startswith("<") else file


def is_users(process: ProcessTimes, node: int) -> bool:
    """Return whether a line belongs to the user's code instead of a library that runs the loop."""
    return process.log.codes[process.tree.position[node][0]].own


def loop_depth(process: ProcessTimes) -> int:
    """Return the number of lines on the call stack at the loop's lines, including the loop's line.

    The loop is in the innermost frame of the optimizer step's call stack that stays open between steps. If that frame
    belongs to a library, the loop's lines are those of the functions that the library calls. If no frame stays open,
    all lines count as lines of the loop.
    """
    stack, frames = process.log.stack, process.frames
    if not frames:
        return min(1, len(stack))
    return frames if process.log.codes[stack[frames - 1][0]].own else frames + 1


def _omitted_below(process: ProcessTimes, node: int, children: dict[int, list[int]]) -> int:
    """Descend from a node to omitted lines as long as they take most of the node's time; return the last node.

    Times of unprofiled steps decide, because during a trace the time of omitted lines counts for recorded lines.
    """
    mean = process.total_ns.mean(axis=1) if process.steps else np.zeros(len(process.tree.parent))
    while True:
        omitted = [child for child in children.get(node, ()) if child in process.omitted]
        best = max(omitted, key=lambda child: float(mean[child]), default=None)
        if best is None or sum(mean[child] for child in omitted) < MOST * mean[node]:
            return node
        node = best
