"""Explain the code of a finding: when it is reported, what its evidence means, and where its page is."""

from __future__ import annotations

import inspect
from typing import Any

from gpudiag.analysis.diagnosis.documented import DOCUMENTED_RULES
from gpudiag.analysis.diagnosis.hardware import HARDWARE_RULES
from gpudiag.errors import UsageError, there_are


def explanation(code: str) -> dict[str, Any]:
    """Return the documentation of a finding.

    Raises:
        UsageError: no finding has this code.
    """
    rules: dict[str, Any] = {rule.code: rule for rule in (*DOCUMENTED_RULES, *HARDWARE_RULES)}
    if code not in rules:
        raise UsageError(f"there is no finding '{code}'", there_are(code, rules))
    rule = rules[code]
    text = inspect.cleandoc((rule if isinstance(rule, type) else type(rule)).__doc__ or "")
    return {
        "code": code,
        "title": getattr(rule, "title", "") or " ".join(text.partition("\n\n")[0].split()),
        "meaning": text,
        "page": f"docs/findings/{code}.md",
    }
