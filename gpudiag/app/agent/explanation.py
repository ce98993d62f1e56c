"""Explain the code of a finding or a warning for an agent, with the page that documents it."""

from __future__ import annotations

from typing import Any

import msgspec

from gpudiag.app.explain import explain


def explanation(code: str) -> dict[str, Any]:
    """Return the documentation of a finding or a warning.

    Raises:
        UsageError: no finding or warning has this code.
    """
    known: dict[str, Any] = msgspec.to_builtins(explain(code))
    page = known["code"] if known["kind"] == "finding" else "warnings"
    return {**known, "page": f"docs/findings/{page}.md"}
