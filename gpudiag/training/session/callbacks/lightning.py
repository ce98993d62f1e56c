"""`gpudiag.LightningCallback`: measures `Trainer.fit` of Lightning."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from gpudiag.training.session.callbacks.driven import DrivenSession

if TYPE_CHECKING:
    Callback = object
else:
    # The same library under two names; programs mix them at their peril, so the one in use is taken.
    _name = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
    Callback = importlib.import_module(_name).Callback


class LightningCallback(Callback):
    """Measure the steps of `Trainer.fit`, as `gpudiag.profile` does those of a loop.

        trainer = Trainer(callbacks=[gpudiag.LightningCallback("run-dir", batch_size=64)], ...)

    A step ends with the batch that updates the model: with `accumulate_grad_batches` it has several. Fetching and
    logging belong to the step that follows; validation, checkpoints and the ends of epochs to none, and the step that
    they fall into is left out.

    Args:
        run_dir: the run directory; may be left out under `gpudiag profile module:function`.
        stop: end training when all is measured; by default only under `gpudiag profile`.
        options: the other arguments of `gpudiag.profile`.

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
        """The last step ends and the next begins, if the model was updated."""
        if trainer.global_step == self._updates:
            return
        self._updates = trainer.global_step
        if self._driven.step():
            trainer.should_stop = True

    def on_validation_start(self, *_: Any) -> None:
        """Validation belongs to no step."""
        self._driven.pause()

    def on_save_checkpoint(self, *_: Any) -> None:
        """Nor does a checkpoint."""
        self._driven.pause()

    def on_train_epoch_end(self, *_: Any) -> None:
        """Nor does what is between two epochs."""
        self._driven.pause()

    def on_train_end(self, *_: Any) -> None:
        """Keep what there is."""
        self._driven.close()

    def on_exception(self, _trainer: Any, _module: Any, exception: BaseException) -> None:
        """Keep what there is, and say what ended the training."""
        self._driven.close(exception)
