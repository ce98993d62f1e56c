"""Define `gpudiag.KerasCallback`, which measures `model.fit`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import keras

from gpudiag.training.loop.callbacks.driven import DrivenSession


class KerasCallback(keras.callbacks.Callback):  # type: ignore[misc]  # keras is untyped
    """Measure the steps of `model.fit`, as `gpudiag.profile` measures the steps of a loop.

        model.fit(data, epochs=3, callbacks=[gpudiag.KerasCallback("run-dir", batch_size=64)])

    A step lasts from the start of one batch to the start of the next batch. Keras fetches the next batch within the
    step. TensorFlow's traces show the time of the fetch. In unprofiled steps this time is unknown. The last step of an
    epoch and the code after the epoch are excluded. With `steps_per_execution` each execution counts as one step.

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

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002  # Keras's signature, here and below
        """Open the session."""
        self._driven.open(model=self.model, framework="tensorflow")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """End a step and begin the next step."""
        if self._driven.step():
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Exclude the following code (validation, checkpoints) from all steps."""
        self._driven.pause()

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Close the session, and keep its measurements."""
        self._driven.close()
