"""Measure the share of injected faults in the analysis that the tests detect: `make mutants`.

Source locations in attribution, timeline and diagnosis are drawn at random. Each gets one of the changes that Cosmic
Ray (https://cosmic-ray.readthedocs.io) makes there: another operator, comparison or number, a negated condition, or a
loop without iterations. A changed copy (mutant) is killed if a test fails or takes far longer than on the unchanged
code. The tests of `make unit` that run the changed line are run, shortest first, for at most `--budget` seconds. A
surviving mutant is tested again in a later run with a larger budget. Everything happens in a copy of the working tree
in `build/mutants`. Results are kept there as one line of JSON per mutant, and an interrupted run continues from them.

Equivalent and untestable mutants are excluded: changes of annotations or of code for type checkers only, identity
instead of equality, bitwise operators or powers instead of arithmetic, and invalid Python. Guard options (`frozen`,
`strict` of zip) and the examples in rules, which are test inputs, are excluded too.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_and_test, mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from cosmic_ray.work_item import MutationSpec
from coverage import CoverageData

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpudiag.statistics import wilson

HERE = Path(__file__).resolve().parent.parent
BUILD = HERE / "build" / "mutants"
TREE = BUILD / "tree"
FOLDERS = tuple(Path("gpudiag/analysis", name) for name in ("attribution", "timeline", "diagnosis"))
TESTS = ("tests/analysis", "tests/app", "tests/commands", "tests/report", "tests/test_cli.py")
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=unit")
FAST = "not processes and not long and not measured"

#: Groups of operators within which a mutant can replace one operator by another.
FAMILIES = ({"Add", "Sub", "Mul", "Div", "FloorDiv", "Mod"}, {"BitOr", "BitAnd", "BitXor"}, {"LShift", "RShift"})
#: Variables of rules that contain example traces for tests.
EXAMPLES = {"FIRES", "SILENT", "ABSTAINS"}
#: Options that prevent misuse; the type checker or other tests detect changes of these.
GUARDS = {"frozen", "slots", "kw_only", "strict"}

Position = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change that Cosmic Ray can make: its mutation operator applied to the `occurrence`-th match in a module."""

    module: Path
    operator: str
    occurrence: int
    start: Position
    end: Position

    @property
    def name(self) -> str:
        """Return the name that identifies the change in results."""
        return f"{self.module}:{self.start[0]}:{self.start[1]} {self.operator.removeprefix('core/')} {self.occurrence}"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--mutants", type=int, default=150)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--budget", type=float, default=40.0, help="seconds of tests for one mutant")
    options.add_argument("--until", type=float, default=float("inf"), help="minutes after which no mutant is begun")
    given = options.parse_args()
    end = time.monotonic() + given.until * 60
    _copy_tree()
    if not (BUILD / "tests.xml").is_file():
        _record_tests()
    os.chdir(TREE)
    tests = Tests(budget_s=given.budget)
    kept = BUILD / f"seed-{given.seed}.jsonl"
    known = [json.loads(line) for line in kept.read_text().splitlines()] if kept.is_file() else []
    results = {result["name"]: result for result in known}
    for result in known:
        if "::" in result["by"]:  # a test, not the end of an output
            tests.found_by(result["by"])
    drawn = drawn_changes(given.mutants, given.seed)
    for number, change in enumerate(drawn):
        before = results.get(change.name, {"outcome": "", "budget_s": 0.0})
        # Mutants that survived under a smaller budget are tested again.
        if before["outcome"] != "killed" and before["budget_s"] < given.budget and time.monotonic() < end:
            results[change.name] = tried(change, tests) | {"budget_s": given.budget}
            with kept.open("a") as file:
                print(json.dumps(results[change.name]), file=file)
            print(f"{number + 1}/{len(drawn)} {results[change.name]['outcome']:8} {change.name}", flush=True)
    print_results([results[change.name] for change in drawn if change.name in results])
    return 0


def _copy_tree() -> None:
    """Copy the files of the working tree, without caches."""
    shutil.rmtree(TREE, ignore_errors=True)
    listed = subprocess.run(
        ["git", "-C", HERE, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (HERE / name).is_file():
            (TREE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(HERE / name, TREE / name)


def _record_tests() -> None:
    """Record the lines that each test runs, and its duration."""
    covered = [f"--cov={folder}" for folder in FOLDERS]
    subprocess.run(
        [*PYTEST, "-m", FAST, *covered, "--cov-context=test", "--cov-report=",
         f"--junitxml={BUILD / 'tests.new'}", "-o", "junit_family=xunit1", *TESTS],
        cwd=TREE, check=True, env={**os.environ, "COVERAGE_FILE": str(BUILD / "coverage")},
    )  # fmt: skip
    (BUILD / "tests.new").rename(BUILD / "tests.xml")  # only a complete file has the final name


class Tests:
    """The tests, the lines that each of them runs, and their durations, from one run of all tests."""

    def __init__(self, *, budget_s: float) -> None:
        self._budget_s = budget_s
        self._lines: dict[Path, dict[int, set[str]]] = {}
        data = CoverageData(str(BUILD / "coverage"))
        data.read()
        for module in modules():
            by_line = data.contexts_by_lineno(str(TREE / module))
            # Contexts are test ids with the phase of the test.
            self._lines[module] = {
                line: {context.removesuffix("|run").removesuffix("|setup") for context in contexts if context}
                for line, contexts in by_line.items()
            }
        took: dict[str, float] = {}
        for case in ET.parse(BUILD / "tests.xml").iter("testcase"):  # noqa: S314  # the file is written by pytest
            where = Path(case.attrib["file"])
            # `classname` is the module, followed by the classes that contain the test.
            nested = case.attrib["classname"].removeprefix(".".join(where.with_suffix("").parts)).strip(".")
            took["::".join(filter(None, (str(where), nested, case.attrib["name"])))] = float(case.attrib["time"])
        self._took = took
        self._found: Counter[str] = Counter()

    def of(self, change: Change) -> list[dict[str, float]]:
        """Return the tests to run for a change as test → seconds, in one or two groups that run one after the other.

        The tests are the shortest that run the changed statement and fit the budget. The first group has only tests of
        the file that has killed most mutants so far, because running one file is quicker than importing all files.
        """
        first, then = self._running(change)
        chosen: dict[str, float] = {}
        for name in (*sorted(first, key=self._seconds), *sorted(then - first, key=self._seconds)):
            if sum(chosen.values()) + self._seconds(name) <= self._budget_s:
                chosen[name] = self._seconds(name)
        telling = {name: took for name, took in chosen.items() if _file(name) in self._telling()}
        return [part for part in (telling, {name: chosen[name] for name in sorted(chosen.keys() - telling)}) if part]

    def found_by(self, name: str) -> None:
        """Count a mutant that the test `name` killed."""
        self._found[_file(name)] += 1

    def _telling(self) -> list[str]:
        return [file for file, _ in self._found.most_common(1)]

    def _seconds(self, name: str) -> float:
        return self._took.get(name, 0.0)

    def _running(self, change: Change) -> tuple[set[str], set[str]]:
        """Return (tests to prefer, further tests).

        The preferred tests are those that run the changed statement; further tests are not needed. If no test runs the
        statement, because it runs only on import, two other sets are returned. The preferred tests are then those that
        run any line, in any module, with a name that the statement defines. The further tests are all tests of the
        statement's module.
        """
        statement, header = _statement(change)
        lines = self._lines[change.module]
        running = {test for line in header for test in lines.get(line, ())}
        if running:
            return running, set()
        # Without a name, `$^` matches no line with text.
        defined = re.compile(rf"\b({'|'.join(map(re.escape, _names(statement))) or '$^'})\b")
        naming = {
            test
            for module, by_line in self._lines.items()
            for number, text in enumerate(_source(module).splitlines(), 1)
            if defined.search(text)
            for test in by_line.get(number, ())
        }
        return naming, {test for tests in lines.values() for test in tests}


def _file(test: str) -> str:
    return test.partition("::")[0]


def _statement(change: Change) -> tuple[ast.stmt, range]:
    """Return (innermost statement around the change, numbers of its lines without its body)."""
    tree = ast.parse(_source(change.module))
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and _first_line(node) <= change.start[0] <= (node.end_lineno or node.lineno)
    ]
    inner = max(around, key=lambda node: (_first_line(node), node.col_offset))
    body = getattr(inner, "body", None)
    last = max(inner.lineno, body[0].lineno - 1) if body else inner.end_lineno or inner.lineno
    return inner, range(_first_line(inner), last + 1)


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def _names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [node.id for target in targets if target for node in ast.walk(target) if isinstance(node, ast.Name)]


@cache
def _source(module: Path) -> str:
    return (TREE / module).read_text(encoding="utf-8")


def modules() -> list[Path]:
    return sorted(
        path.relative_to(TREE)
        for folder in FOLDERS
        for path in (TREE / folder).rglob("*.py")
        if path.name != "examples.py"
    )


def drawn_changes(count: int, seed: int) -> list[Change]:
    """Draw source locations at random, and for each location one of its possible changes."""
    places: dict[tuple[Path, Position, Position], list[Change]] = defaultdict(list)
    for module in modules():
        for change in changes(module):
            places[module, change.start, change.end].append(change)
    order = sorted(places, key=lambda place: (str(place[0]), *place[1:]))
    print(f"{sum(map(len, places.values()))} mutants at {len(places)} places; seed {seed}")
    chance = random.Random(seed)  # noqa: S311 # not for security
    chance.shuffle(order)
    chosen = (chance.choice(places[place]) for place in order)
    drawn = (change for change in chosen if _is_python(change))
    return [change for change, _ in zip(drawn, range(count), strict=False)]


def changes(module: Path) -> Iterator[Change]:
    """Yield all changes of a module that are neither equivalent nor untestable."""
    nodes = list(ast_nodes(get_ast(_source(module))))
    left_out = list(_left_out(ast.parse(_source(module))))
    for name in operator_names():
        operator = get_operator(name)
        # Operators with arguments change only the variables that a configuration names.
        if operator.arguments() or not _is_plausible(name):
            continue
        positions = (position for node in nodes for position in operator().mutation_positions(node))
        for occurrence, (start, end) in enumerate(positions):
            if not any(begin <= start < stop for begin, stop in left_out):
                yield Change(module=module, operator=name, occurrence=occurrence, start=start, end=end)


def _is_plausible(operator: str) -> bool:
    """Return False for replacements across `FAMILIES`, and of equality by identity or the reverse."""
    kind, *between = operator.removeprefix("core/").split("_")
    if kind == "ReplaceBinaryOperator":
        return any(set(between) <= family for family in FAMILIES)
    if kind == "ReplaceComparisonOperator":
        return len({"Is", "IsNot"} & set(between)) != 1
    return True


def _left_out(tree: ast.Module) -> Iterator[tuple[Position, Position]]:
    """Yield (begin, end) of source without mutants: annotations, code for type checking, guard options, examples."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(annotation=ast.expr() as found) | ast.AnnAssign(annotation=found):
                yield _span(found)
            case ast.FunctionDef(returns=ast.expr() as found):
                yield _span(found)
            case ast.keyword(arg=str(name)) if name in GUARDS:
                yield _span(node)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield _span(node)
        if isinstance(node, ast.AnnAssign | ast.Assign) and EXAMPLES & set(_names(node)):
            yield _span(node)


def _span(node: ast.expr | ast.stmt | ast.keyword) -> tuple[Position, Position]:
    return (node.lineno, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or 0)


def _is_python(change: Change) -> bool:
    """Return whether the changed module compiles; a `*` before keyword-only arguments, for example, is no operator."""
    changed = mutate_code(_source(change.module), get_operator(change.operator)(), change.occurrence)
    try:
        compile(changed, str(change.module), "exec")
    except SyntaxError:
        return False
    return True


def tried(change: Change, tests: Tests) -> dict[str, Any]:
    """Apply the change, run the tests, undo the change, and return the outcome.

    Returns:
        `name` of the change, number of `tests`, `outcome` ("killed", "survived", or "not run" without tests), `diff` of
        the source, and `by`: the failed test, or the end of the output if no test failed (for example at a timeout).
    """
    goes = tests.of(change)
    found = {"name": change.name, "tests": sum(map(len, goes)), "outcome": "not run", "diff": "", "by": ""}
    mutation = MutationSpec(
        module_path=change.module, operator_name=change.operator, occurrence=change.occurrence,
        start_pos=change.start, end_pos=change.end,
    )  # fmt: skip
    arguments = BUILD / "arguments"
    for go in goes:
        arguments.write_text("\n".join(go), encoding="utf-8")
        # Hypothesis's examples and the bytecode of an earlier mutant are invalid for the next mutant.
        shutil.rmtree(TREE / ".hypothesis", ignore_errors=True)
        Path(importlib.util.cache_from_source(str(change.module))).unlink(missing_ok=True)
        command = " ".join((*PYTEST, "-x", f"@{arguments}"))
        result = mutate_and_test([mutation], command, 60 + 4 * sum(go.values()))  # seconds, with a minute for imports
        output = result.output or ""
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        found |= {"outcome": result.test_outcome.value if result.test_outcome else "?", "diff": result.diff}
        if result.is_killed:
            if failed:
                tests.found_by(failed[1])
            return found | {"by": failed[1] if failed else output[-200:]}
    return found


def print_results(results: Sequence[dict[str, Any]]) -> None:
    """Print the share of killed mutants by folder, and the source change of each mutant that was not killed."""
    print("\n| folder | mutants | killed | share | 95 % interval |\n| --- | ---: | ---: | ---: | --- |")
    for folder in (*FOLDERS, Path("gpudiag/analysis")):
        folder_results = [result for result in results if result["name"].startswith(f"{folder}/")]
        killed = sum(result["outcome"] == "killed" for result in folder_results)
        if folder_results:
            low, high = wilson(killed, len(folder_results))
            share = f"{100 * killed / len(folder_results):.0f} % | {100 * low:.0f} to {100 * high:.0f}"
            print(f"| {folder} | {len(folder_results)} | {killed} | {share} |")
    for result in results:
        if result["outcome"] != "killed":
            lines = [line for line in result["diff"].splitlines() if re.match(r"[-+](?![-+])", line)]
            print("\n".join((f"\n{result['outcome']}: {result['name']}, {result['tests']} tests", *lines)))


if __name__ == "__main__":
    sys.exit(main())
