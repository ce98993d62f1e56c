"""A loader that is late: it sleeps before it gives out a batch, as one does that waits for a disk."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpudiag.workloads.faults.fault import Fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpudiag.workloads.batches import Batch


class Loader:
    """Batches in host memory, `late_s` seconds late each. A plain iterator: it leaves no mark in a trace."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches = batches
        self.late_s = 0.0

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            if self.late_s:
                time.sleep(self.late_s)
            yield batch


class LateLoader(Fault):
    """Each batch comes `amount_ms` late."""

    def switch(self, *, on: bool) -> None:
        """Set by how much the next batch is late."""
        self.trainer.loader.late_s = self.amount_ms / 1e3 if on and self.mine else 0.0
