"""Set how many examples a property test draws."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

#: Number of examples in the profile `whole`, which is hypothesis's default.
_USUAL = 100
_DRAWN: int = settings().max_examples  # the number of examples in the loaded profile


def examples(count: int, **more: Any) -> settings:
    """Return settings with `count` examples, scaled down unless the profile is `whole`."""
    return settings(max_examples=max(1, count * min(_DRAWN, _USUAL) // _USUAL), **more)
