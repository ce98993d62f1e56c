"""How many examples a property test draws."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

_USUAL = 100
_DRAWN: int = settings().max_examples  # of the profile that is loaded


def examples(count: int, **more: Any) -> settings:
    """So many examples; in proportion fewer under a profile that draws fewer, which `make unit` loads."""
    return settings(max_examples=max(1, count * min(_DRAWN, _USUAL) // _USUAL), **more)
