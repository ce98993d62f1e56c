"""Define the type of functions that call a task for every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class Each(Protocol):
    """Call a task for each item, like `map`, in this process or in other processes; outcomes are in order."""

    def __call__(self, task: Callable[[Item], Outcome], items: Iterable[Item], /) -> Iterable[Outcome]:
        """Return the outcomes."""
