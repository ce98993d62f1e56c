"""Implement faults that occupy the training thread: logging, saving, and garbage collection."""

from __future__ import annotations

import gc
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from gpudiag.training.jobs.faults.fault import Fault
from gpudiag.training.jobs.faults.pytorch.step_faults import CallFault
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer

#: A fault is sized by timing `_TRIALS` calls that log this many lines or save this many tensors.
_TRIALS = 3
_TRIAL_LINES = 200
_TRIAL_TENSORS = 8
#: Number of elements of each tensor of a checkpoint (1 MB in fp32).
_TENSOR_ELEMENTS = 1 << 18
#: Maximum number of tensors in a checkpoint (1 GB).
_MOST_TENSORS = 1000
#: Number of objects of a timed garbage collection. They exceed the processor's caches, as the fault's objects do.
_TRIAL_OBJECTS = 500_000


def _host_ms(function: Callable[[], object]) -> float:
    """Return the shortest host time of a few calls, in ms."""
    trials = []
    for _ in range(_TRIALS):
        began = time.perf_counter()
        function()
        trials.append(1e3 * (time.perf_counter() - began))
    return min(trials)


class Logs(CallFault):
    """After each update, write records of metrics to a file for `amount_ms`."""

    point = "after"

    def prepare(self) -> None:
        """Open the file, and measure how many records take `amount_ms`."""
        self._file = tempfile.TemporaryFile("w+", encoding="ascii")  # noqa: SIM115 # closed with the fault
        self._lines = _TRIAL_LINES
        if self.affected:
            self._lines = max(1, round(_TRIAL_LINES * self.amount_ms / _host_ms(self.with_fault)))

    def close(self) -> None:
        """Remove the file."""
        self._file.close()

    def with_fault(self) -> None:
        """Write the records."""
        self._file.seek(0)
        for number in range(self._lines):
            metrics = {f"layer{number}/{metric}": number / 7 for metric in ("mean", "deviation", "norm", "largest")}
            self._file.write(json.dumps(metrics) + "\n")
        self._file.flush()


class Saves(CallFault):
    """After each update, save device tensors with `torch.save` for `amount_ms`."""

    point = "after"

    def prepare(self) -> None:
        """Time the saving of a few tensors, and make as many tensors as can be saved in `amount_ms`."""
        self._directory = tempfile.TemporaryDirectory(prefix="gpudiag-")
        self._state = self._tensors(_TRIAL_TENSORS if self.affected else 0)
        if self.affected:
            each_ms = _host_ms(self.with_fault) / _TRIAL_TENSORS
            self._state = self._tensors(min(_MOST_TENSORS, max(1, round(self.amount_ms / each_ms))))

    def close(self) -> None:
        """Remove the checkpoint."""
        self._directory.cleanup()

    def _tensors(self, count: int) -> dict[str, torch.Tensor]:
        return {f"layer{number}": torch.zeros(_TENSOR_ELEMENTS, device=self.trainer.device) for number in range(count)}

    def with_fault(self) -> None:
        """Save the checkpoint."""
        torch.save(self._state, Path(self._directory.name) / "checkpoint.pt")


class Collections(Fault[DdpTrainer]):
    """Before each update, run `gc.collect()` over so many objects that it takes `amount_ms`.

    All other objects are frozen (`gc.freeze`), because a collection of all objects might take longer than `amount_ms`.
    """

    def prepare(self) -> None:
        """Time a collection, and choose the number of objects."""
        self._heap: list[list[int]] = []
        self._objects = _TRIAL_OBJECTS
        if self.affected:
            self._fill()
            self._objects = max(1, round(_TRIAL_OBJECTS * self.amount_ms / _host_ms(gc.collect)))
            self._empty()

    def switch(self, *, on: bool) -> None:
        """Make the objects and collect in each step (on), or delete the objects (off)."""
        if not self.affected:
            return
        self._empty()
        if on:
            self._fill()
        self.trainer.before_update = self._collect if on else None

    def _fill(self) -> None:
        gc.collect()
        gc.freeze()
        self._heap = [[number] for number in range(self._objects)]

    def _empty(self) -> None:
        self._heap = []
        gc.unfreeze()

    def _collect(self) -> None:
        gc.collect()
