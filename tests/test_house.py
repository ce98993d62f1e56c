"""Test the project's rules: sizes of modules and folders, import cycles, complexity, names and wording."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

HERE = Path(__file__).parents[1]
PACKAGE = HERE / "gpudiag"
MODULES = sorted(PACKAGE.rglob("*.py"))
LINES = {path: path.read_text(encoding="utf-8").count("\n") for path in MODULES}

MOST_LINES = 400
#: Maximum number of lines per folder, including blank ones. To allow more lines for a folder, reduce the limit of a
#: different folder.
BUDGET = {
    "analysis": 23_350,
    "app": 7_150,
    "commands": 3_390,
    "machine": 3_160,
    "model": 6_160,
    "prediction": 840,
    "report": 9_370,
    "trace": 10_090,
    "training": 21_460,
    "": 660,
}
#: Maximum number of decisions in one function: branches, loops, handlers, ternaries, boolean operators, conditions of
#: comprehensions.
MOST_DECISIONS = 15
#: First words that make a docstring a relative clause or a fragment.
QUESTION_WORDS = frozenset({"what", "which", "how", "whether", "of", "where", "those", "who", "whose", "by", "that"})
#: Retired terms; the glossary defines their replacements.
RETIRED_WORDS = (
    "hand-over",
    "roll call",
    "levelled",
    "undisturbed",
    "dearer",
    "plainness",
    "light recording",
    "relieved",
)


#: A module, class or function.
Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def definitions(folder: str) -> list[tuple[Path, Definition]]:
    """Return the modules, classes and functions of a folder with their paths."""
    paths = sorted((HERE / folder).rglob("*.py"))
    return [(path, node) for path in paths for node in _definitions(ast.parse(path.read_text(encoding="utf-8")))]


def _definitions(node: ast.AST) -> Iterator[Definition]:
    """Yield the definitions in a statement. Expressions, which contain most nodes but no definitions, are skipped."""
    if isinstance(node, Definition):
        yield node
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for statement in getattr(node, block, ()):
            yield from _definitions(statement)


def entries(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name not in {"__pycache__", "_probes"})


@pytest.mark.xdist_group("house")
def test_xdist_keeps_groups_on_one_worker(request: pytest.FixtureRequest) -> None:
    """pytest-xdist appends the group to test ids, which not every pytest version supports."""
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@house")


def test_package_root_has_at_most_16_entries() -> None:
    assert len(entries(PACKAGE)) <= 16, entries(PACKAGE)


def test_folders_have_at_most_15_files() -> None:
    """`__init__.py` is not counted."""
    beside = Counter(path.parent for path in PACKAGE.rglob("*") if path.is_file() and path.suffix in {".py", ".proto"})
    beside.subtract(path.parent for path in MODULES if path.name == "__init__.py")
    assert {str(where.relative_to(HERE)): count for where, count in beside.items() if count > 15} == {}


def test_no_module_is_longer_than_400_lines() -> None:
    assert {str(path.relative_to(HERE)): lines for path, lines in LINES.items() if lines > MOST_LINES} == {}


def test_no_module_has_a_meaningless_name() -> None:
    nothing = {"utils", "helpers", "common", "misc"}
    assert [str(path) for path in PACKAGE.rglob("*") if path.stem in nothing] == []


def test_complexity_is_bounded_by_the_linter() -> None:
    lint = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]
    assert "C90" in lint["select"]
    assert lint["mccabe"]["max-complexity"] <= 15
    allowed = re.compile(r"noqa:.*C901")
    assert [str(path) for path in MODULES if allowed.search(path.read_text(encoding="utf-8"))] == []


def circles(graph: grimp.ImportGraph) -> list[list[str]]:
    """Return groups of modules that import each other in cycles, except under `if TYPE_CHECKING`.

    The groups are the strongly connected components of the graph, found by Tarjan's algorithm.
    """
    order = 0
    seen: dict[str, int] = {}
    stacked: list[str] = []
    lowest: dict[str, int] = {}
    groups: list[list[str]] = []

    def visit(module: str) -> None:
        nonlocal order
        seen[module] = lowest[module] = order
        order += 1
        stacked.append(module)
        for imported in graph.find_modules_directly_imported_by(module):
            if imported not in seen:
                visit(imported)
                lowest[module] = min(lowest[module], lowest[imported])
            elif imported in stacked:
                lowest[module] = min(lowest[module], seen[imported])
        if lowest[module] == seen[module]:
            at = stacked.index(module)
            group, stacked[at:] = stacked[at:], []
            if len(group) > 1:
                groups.append(sorted(group))

    for module in sorted(graph.modules):
        if module not in seen:
            visit(module)
    return groups


def test_modules_do_not_import_each_other_in_cycles() -> None:
    graph = grimp.build_graph("gpudiag", exclude_type_checking_imports=True, cache_dir=None)
    assert circles(graph) == []


def test_traces_stay_small() -> None:
    size = sum(
        path.stat().st_size
        for path in (HERE / "tests" / "traces").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    )
    assert size < 15_000_000


def test_each_folder_keeps_its_budget_of_lines() -> None:
    lines: Counter[str] = Counter()
    for path, count in LINES.items():
        parts = path.relative_to(PACKAGE).parts
        lines[parts[0] if len(parts) > 1 else ""] += count
    print(f"{sum(lines.values())} lines in {len(LINES)} modules of gpudiag: {dict(lines)}")  # noqa: T201
    assert {folder: count for folder, count in lines.items() if count > BUDGET[folder]} == {}


def decisions(function: ast.AST) -> int:
    """Count the decisions in a function, but not those in nested functions and classes."""
    count = 0
    for node in ast.iter_child_nodes(function):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(
            node, ast.If | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler | ast.IfExp | ast.match_case
        ):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += len(node.ifs)
        count += decisions(node)
    return count


def test_no_function_has_more_than_15_decisions() -> None:
    violations = {
        f"{path.relative_to(HERE)}:{node.lineno} {node.name}": decisions(node)
        for path, node in definitions("gpudiag")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: count for name, count in violations.items() if count > MOST_DECISIONS} == {}


def test_class_names_are_unique() -> None:
    classes: dict[str, list[str]] = {}
    for path, node in definitions("gpudiag"):
        if isinstance(node, ast.ClassDef):
            classes.setdefault(node.name, []).append(str(path.relative_to(HERE)))
    assert {name: paths for name, paths in classes.items() if len(paths) > 1} == {}


def docstring_openings(folder: str) -> list[str]:
    """Return `path: first line` of every docstring."""
    return [
        f"{path.relative_to(HERE)}: {text.strip().splitlines()[0]}"
        for path, node in definitions(folder)
        if (text := ast.get_docstring(node, clean=False)) and text.strip()
    ]


@pytest.mark.parametrize("folder", ["gpudiag", "probes", "tests", "benchmarks", "docs", ".ci"])
def test_docstrings_open_with_a_statement(folder: str) -> None:
    openings = docstring_openings(folder)
    questions = [line for line in openings if line.split()[1].strip(".,:;").lower() in QUESTION_WORDS]
    assert len(questions) <= 0.02 * len(openings), questions


def test_retired_words_are_gone() -> None:
    texts = {path: path.read_text(encoding="utf-8").lower() for path in MODULES}
    violations = [
        (str(path.relative_to(HERE)), word) for path, text in texts.items() for word in RETIRED_WORDS if word in text
    ]
    assert violations == []


def test_changelog_entries_are_one_line_each() -> None:
    text = (HERE / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n## ")[2]
    assert [line for line in text.splitlines()[1:] if line and not line.startswith(("- ", "#", "First release."))] == []
