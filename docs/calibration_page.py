"""The page of all figures that verdicts hang on, from the modules in which they stand."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE / "calibration.md"
MODULES = {
    "The diagnosis": "gpudiag/analysis/diagnosis/calibration.py",
    "The timeline": "gpudiag/analysis/timeline/calibration.py",
    "Both": "gpudiag/model/timeline.py",
}
HEAD = """# What verdicts hang on

Every figure that decides what is found, named or trusted, and where it comes from. Made by `docs/generate.py` from the
modules named below; tests have a case just below and one just above each.
"""
KINDS = {
    "Contract": "what findings promise",
    "Physical": "of the hardware",
    "Statistical": "how much it takes to tell something from chance",
    "Definition": "what a word means",
    "Measured": "on what, and how often",
    "Judgement": "chosen, and why it does no harm",
}


def calibration_page() -> dict[Path, str]:
    """The page, with a table for each module."""
    kinds = "\n".join(f"- **{kind}**: {words}." for kind, words in KINDS.items())
    parts = [f"{HEAD}\n{kinds}\n"]
    for title, module in MODULES.items():
        rows = "\n".join(_rows(HERE.parent / module))
        parts.append(
            f"## {title}\n\nIn `{module}`.\n\n| figure | value | what it decides | kind | source |\n"
            f"| --- | --- | --- | --- | --- |\n{rows}\n"
        )
    return {PAGE: "\n".join(parts)}


def _rows(module: Path) -> list[str]:
    text = module.read_text(encoding="utf-8")
    body = ast.parse(text).body
    rows = []
    for one, after in pairwise(body):
        told = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
        if not isinstance(one, ast.Assign) or not isinstance(told, str):
            continue
        words = " ".join(told.split())
        at, kind = max((words.rfind(f"{kind}{end}"), kind) for kind in KINDS for end in (":", "."))
        if at >= 0:
            value = (ast.get_source_segment(text, one.value) or "").replace(" * NS_PER_US", " µs")
            value = value.replace(" * NS_PER_MS", " ms").replace("512 << 20", "512 MiB")
            source = words[at + len(kind) :].lstrip(":. ").rstrip()
            rows.append(f"| `{ast.unparse(one.targets[0])}` | {value} | {words[:at].strip()} | {kind} | {source} |")
    return rows
