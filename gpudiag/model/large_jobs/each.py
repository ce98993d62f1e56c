"""Define how a stage calls a function for every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class Each(Protocol):
    """Call a function for each item, like `map`, in this process or in others; the outcomes are in order."""

    def __call__(self, task: Callable[[Item], Outcome], items: Iterable[Item], /) -> Iterable[Outcome]:
        """Return the outcomes."""
