"""Generate a page per finding from its rule: when it fires, when it is silent, its message and its advice."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.compute.work import compute_work
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.documented import DOCUMENTED_RULES
from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.analysis.diagnosis.hardware import HARDWARE_RULES
from gpudiag.analysis.timeline import build_timeline
from tests.analysis.diagnosis.rule_examples import every_example

if TYPE_CHECKING:
    from gpudiag.analysis.diagnosis.hardware.rule import FactsRule
    from gpudiag.analysis.diagnosis.rules.compute_bound import ComputeBound
    from gpudiag.analysis.diagnosis.rules.rule import Rule
    from gpudiag.model.analysis import Finding
    from tests.analysis.diagnosis.rule_examples.jobs import Job

    AnyRule = type[Rule] | type[ComputeBound] | FactsRule

FINDINGS = Path(__file__).resolve().parent / "findings"


def finding_pages() -> dict[Path, str]:
    """Return the page of every finding, and the index of all findings."""
    pages = {}
    rows = []
    for rule in DOCUMENTED_RULES:
        shown = [(what, _found(rule.code, job)) for what, job in every_example(rule.code, "FIRES")]
        pages[FINDINGS / f"{rule.code}.md"] = _page(
            rule,
            rule.title,
            shown,
            [what for what, _ in every_example(rule.code, "SILENT")],
            [what for what, _ in every_example(rule.code, "ABSTAINS")],
        )
        rows.append((rule.code, "traces", _first_sentence(rule)))
    for hardware in HARDWARE_RULES:
        shown = [(what, hardware.examine(facts)[0]) for what, facts in every_example(hardware.code, "FIRES")]
        pages[FINDINGS / f"{hardware.code}.md"] = _page(
            hardware, _first_sentence(hardware), shown, [what for what, _ in every_example(hardware.code, "SILENT")], []
        )
        rows.append((hardware.code, "the machine", _first_sentence(hardware)))
    pages[FINDINGS / "index.md"] = _index(rows)
    return pages


def _page(rule: AnyRule, title: str, shown: list[tuple[str, Finding]], silent: list[str], abstains: list[str]) -> str:
    """Return the page of a finding; the lists have the descriptions of its examples."""
    parts = [f"# {rule.code}\n\n{title.rstrip('.')}.\n", _words(rule, without=title)]
    parts.append("## When it fires\n\n" + "\n".join(f"- {what}: *{finding.title}*" for what, finding in shown) + "\n")
    parts.append("## When it is silent\n\n" + "\n".join(f"- {what}" for what in silent) + "\n")
    if abstains:
        parts.append("## When it cannot tell\n\n" + "\n".join(f"- {what}" for what in abstains) + "\n")
    by_cause: dict[str | None, Finding] = {}
    for _, finding in shown:
        by_cause.setdefault(finding.cause, finding)
    parts.append("## What it advises\n")
    for cause, finding in by_cause.items():
        lines = "\n".join(f"- {line}" for line in finding.advice)
        parts.append(f"When the cause is *{cause}*:\n\n{lines}\n" if len(by_cause) > 1 else f"{lines}\n")
    return "\n".join(part for part in parts if part)


def _words(rule: AnyRule, *, without: str) -> str:
    """Return the rule's docstring as paragraphs, without its first sentence if that equals `without`."""
    text = inspect.cleandoc(type(rule).__doc__ or "" if not isinstance(rule, type) else rule.__doc__ or "")
    text = text.removeprefix(without).strip()
    return f"{text}\n" if text else ""


def _first_sentence(rule: AnyRule) -> str:
    text = inspect.cleandoc((rule if isinstance(rule, type) else type(rule)).__doc__ or "")
    return " ".join(text.partition("\n\n")[0].split())


def _found(code: str, job: Job) -> Finding:
    timeline = build_timeline(job.traces())
    findings = diagnose(Case(timeline=timeline, attribution=attribute(timeline), work=compute_work(timeline))).findings
    return next(finding for finding in findings if finding.code == code)


def _index(rows: list[tuple[str, str, str]]) -> str:
    """Return the index page from (code, source of the finding, meaning) of each finding."""
    table = "\n".join(f"| [{code}]({code}.md) | {source} | {words} |" for code, source, words in rows)
    return (
        "# Findings\n\nOne page per finding, made from its rule: what it means, examples in which it fires and is\n"
        "silent, and what it advises. The examples are played as traces (or machines) and tested.\n\n"
        "`gpudiag explain CODE` prints a page. [Warnings](warnings.md) about recordings have a page of their own.\n\n"
        f"| finding | from | meaning |\n| --- | --- | --- |\n{table}\n"
    )
