"""Define `gpudiag.LightningCallback`, which measures `Trainer.fit` of Lightning."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpudiag.training.loop.callbacks.driven import DrivenSession

if TYPE_CHECKING:
    Callback = object
else:
    # Lightning has two package names, which a program must not mix. Import the package that the program uses.
    _name = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
    Callback = importlib.import_module(_name).Callback


class LightningCallback(Callback):
    """Measure the steps of `Trainer.fit`, as `gpudiag.profile` measures the steps of a loop.

        trainer = Trainer(callbacks=[gpudiag.LightningCallback("run-dir", batch_size=64)], ...)

    A step ends with the batch that updates the model; with `accumulate_grad_batches` a step has several batches.
    Fetching and logging belong to the next step. Steps with validation, a checkpoint or an epoch's end are excluded.

    The arguments are those of `gpudiag.profile`. Under `gpudiag profile module:function`, `run_dir` may be omitted, and
    training ends by default when everything is measured (`stop`).

    `log_to` names trackers: `wandb`, `mlflow`, `tensorboard`, or a list of these. After the measurement, a process
    of low priority analyses the run. Then rank 0 logs the run to the tracker's open run, or to a new run.

    Raises:
        UsageError: `log_to` names an unknown tracker, or, when training begins, `gpudiag.profile` refuses an argument.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str] | None = None,
        *,
        stop: bool | None = None,
        log_to: str | Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._driven = DrivenSession(run_dir, stop, log_to, options)
        self._updates = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the session."""
        self._updates = trainer.global_step
        # Lightning logs to MLflow with its own client. Therefore `mlflow.active_run` does not return the run.
        loggers = [logger for logger in trainer.loggers if type(logger).__name__ == "MLFlowLogger"]
        mlflow = (loggers[0].experiment, loggers[0].run_id) if loggers and trainer.is_global_zero else None
        self._driven.open(model=pl_module, framework="pytorch", mlflow=mlflow)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """If the batch updated the model, end a step and begin the next step."""
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
