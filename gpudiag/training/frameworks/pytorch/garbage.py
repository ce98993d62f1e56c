"""Python's garbage collections as ranges of the profiler, so that a pause has its cause beside it in the trace."""

from __future__ import annotations

import atexit
import contextlib
import gc
from typing import Any

from gpudiag.training.session.ranges import PREFIX

#: Collections of the youngest objects come many times a step and take microseconds: a range would cost more.
_FROM_GENERATION = 1


class MarkedCollections:
    """Between `start` and `stop` each collection of an older generation is a range `gpudiag.gc`, in any thread.

    PyTorch's own mark (`record_python_gc_info`) needs stacks to be recorded, which slows the host several times over.

    Before the first a full collection is made, where the program has not turned them off: one that comes now and then
    would stand for all steps where it falls into the few that are recorded (of an FSDP job on two H200, 85 ms in one).
    """

    def __init__(self) -> None:
        self._record_function: Any = None
        self._range: Any = None

    def start(self) -> None:
        """Mark from here on, at most until the process ends: Python still collects when modules are gone."""
        from torch.autograd.profiler import record_function

        self._record_function = record_function
        if gc.isenabled():
            gc.collect()
        gc.callbacks.append(self._collecting)
        atexit.register(self.stop)

    def stop(self) -> None:
        """Mark no longer. May be called more often than `start`."""
        atexit.unregister(self.stop)
        if self._collecting in gc.callbacks:
            gc.callbacks.remove(self._collecting)

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        """A collection begins or ends; there is one at a time in a process."""
        # Wherever the program is just then, while it compiles for example: a mark that cannot be made is left out.
        with contextlib.suppress(Exception):
            if phase == "start" and info["generation"] >= _FROM_GENERATION:
                begun = self._record_function(PREFIX + "gc")
                begun.__enter__()
                self._range = begun
            elif phase == "stop" and self._range is not None:
                ended, self._range = self._range, None
                ended.__exit__(None, None, None)
