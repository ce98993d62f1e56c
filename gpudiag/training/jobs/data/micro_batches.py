"""Several batches per step, for gradients that are added up before they are exchanged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class MicroBatches(Generic[T]):
    """The loader's batches in lists of `count`; what is left at its end makes no step.

    Args:
        loader: anything that can be iterated over.
        count: batches per step.
    """

    def __init__(self, loader: Iterable[T], count: int) -> None:
        self._loader = loader
        self._count = count

    def __len__(self) -> int:
        """Steps. Raises TypeError where the loader does not know its length."""
        loader: Any = self._loader
        return len(loader) // self._count

    def __iter__(self) -> Iterator[list[T]]:
        """Begin anew."""
        batches = iter(self._loader)
        while len(step := list(islice(batches, self._count))) == self._count:
            yield step
