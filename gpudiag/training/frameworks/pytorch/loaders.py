"""Batches of torch's DataLoader that are fetched where no session sees it: by a trainer, or in a loop of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from gpudiag.training.session.ranges import INPUT, Range


@contextlib.contextmanager
def marked_loaders(ended: Callable[[], None] = lambda: None) -> Iterator[None]:
    """While this is open, every `next` of a DataLoader's iterator is a range named `input`.

    The class is changed and put back, as iterators that are under way are to be seen too, and there is no hook.

    Args:
        ended: called where a loader has come to its end, in the thread that asked it.
    """
    from torch.utils.data import dataloader

    kind: Any = dataloader._BaseDataLoaderIter  # noqa: SLF001  # what all iterators of DataLoader are
    fetch = kind.__next__

    def marked(iterator: Any) -> Any:
        with Range(INPUT):
            try:
                return fetch(iterator)
            except StopIteration:
                ended()
                raise

    kind.__next__ = marked
    try:
        yield
    finally:
        if kind.__next__ is marked:  # else somebody else has changed it since, and calls this
            kind.__next__ = fetch
