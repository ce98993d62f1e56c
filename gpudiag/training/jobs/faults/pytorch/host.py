"""What keeps one rank's training thread from training: it logs, saves, or collects garbage."""

from __future__ import annotations

import gc
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from gpudiag.training.jobs.faults.fault import Fault
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer

_ROUNDS = 3
_TRIAL_LINES = 200
_TRIAL_TENSORS = 8
_TENSOR_ELEMENTS = 1 << 18
#: What a checkpoint holds at most: a GB.
_MOST_TENSORS = 1000
#: As large as what is asked for: of few objects more lie in the processor's caches.
_TRIAL_OBJECTS = 500_000


def _host_ms(function: Callable[[], object]) -> float:
    """How long the training thread takes for one call: the fastest of a few, in ms."""
    rounds = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        function()
        rounds.append(1e3 * (time.perf_counter() - began))
    return min(rounds)


class Logs(Fault[DdpTrainer]):
    """After each update, as many records of metrics are written to a file as take `amount_ms`."""

    def __init__(self, trainer: DdpTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        self._file = tempfile.TemporaryFile("w+", encoding="ascii")  # noqa: SIM115  # open as long as the fault is
        self._lines = _TRIAL_LINES
        if mine:
            self._lines = max(1, round(_TRIAL_LINES * amount_ms / _host_ms(self._log)))

    def switch(self, *, on: bool) -> None:
        """Log, or not."""
        self.trainer.after = self._log if on and self.mine else None

    def close(self) -> None:
        """Remove the file."""
        self._file.close()

    def _log(self) -> None:
        self._file.seek(0)
        for number in range(self._lines):
            metrics = {f"layer{number}/{what}": number / 7 for what in ("mean", "deviation", "norm", "largest")}
            self._file.write(json.dumps(metrics) + "\n")
        self._file.flush()


class Saves(Fault[DdpTrainer]):
    """After each update, `torch.save` of a state dict on the device that takes `amount_ms`."""

    def __init__(self, trainer: DdpTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        self._directory = tempfile.TemporaryDirectory(prefix="gpudiag-")
        self._state = self._tensors(_TRIAL_TENSORS if mine else 0)
        if mine:
            each_ms = _host_ms(self._save) / _TRIAL_TENSORS
            self._state = self._tensors(min(_MOST_TENSORS, max(1, round(amount_ms / each_ms))))

    def switch(self, *, on: bool) -> None:
        """Save, or not."""
        self.trainer.after = self._save if on and self.mine else None

    def close(self) -> None:
        """Remove the checkpoint."""
        self._directory.cleanup()

    def _tensors(self, count: int) -> dict[str, torch.Tensor]:
        return {f"layer{number}": torch.zeros(_TENSOR_ELEMENTS, device=self.trainer.device) for number in range(count)}

    def _save(self) -> None:
        torch.save(self._state, Path(self._directory.name) / "checkpoint.pt")


class Collections(Fault[DdpTrainer]):
    """Before each update, `gc.collect()` over as many objects as take `amount_ms`.

    What the process had before is kept out of it (`gc.freeze`): it may take longer than was asked for.
    """

    def __init__(self, trainer: DdpTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        self._heap: list[list[int]] = []
        self._objects = _TRIAL_OBJECTS
        if mine:
            self._fill()
            self._objects = max(1, round(_TRIAL_OBJECTS * amount_ms / _host_ms(gc.collect)))
            self._empty()

    def switch(self, *, on: bool) -> None:
        """Fill the heap and collect in each step, or neither."""
        if not self.mine:
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
