"""`gpudiag.LightningCallback`: measures `Trainer.fit` of Lightning."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from gpudiag.training.loop.callbacks.driven import DrivenSession

if TYPE_CHECKING:
    Callback = object
else:
    # The same library under two names, which programs must not mix: take the one in use.
    _name = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
    Callback = importlib.import_module(_name).Callback


class LightningCallback(Callback):
    """Measure the steps of `Trainer.fit`, as `gpudiag.profile` does those of a loop.

        trainer = Trainer(callbacks=[gpudiag.LightningCallback("run-dir", batch_size=64)], ...)

    A step ends with the batch that updates the model: with `accumulate_grad_batches` it has several. Fetching and
    logging belong to the step that follows. Steps that contain validation, a checkpoint or the end of an epoch are
    excluded.

    Arguments are those of `gpudiag.profile`. `run_dir` may be omitted under
    `gpudiag profile module:function`; `stop` ends training when everything is measured, by default only there.

    Raises:
        UsageError: as `gpudiag.profile`, when training begins.
    """

    def __init__(
        self, run_dir: str | os.PathLike[str] | None = None, *, stop: bool | None = None, **options: Any
    ) -> None:
        super().__init__()
        self._driven = DrivenSession(run_dir, stop, options)
        self._updates = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the session."""
        self._updates = trainer.global_step
        self._driven.open(model=pl_module, framework="pytorch")

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """End a step and begin the next, if the model was updated."""
        if trainer.global_step == self._updates:
            return
        self._updates = trainer.global_step
        if self._driven.step():
            trainer.should_stop = True

    def on_validation_start(self, *_: Any) -> None:
        """Exclude validation from all steps."""
        self._driven.pause()

    def on_save_checkpoint(self, *_: Any) -> None:
        """Exclude a checkpoint from all steps."""
        self._driven.pause()

    def on_train_epoch_end(self, *_: Any) -> None:
        """Exclude the time between two epochs from all steps."""
        self._driven.pause()

    def on_train_end(self, *_: Any) -> None:
        """Close the session, and keep its measurements."""
        self._driven.close()

    def on_exception(self, _trainer: Any, _module: Any, exception: BaseException) -> None:
        """Close the session, and record the exception that ended the training."""
        self._driven.close(exception)
