"""Define `gpudiag.TransformersCallback`, which measures the `Trainer` of Hugging Face's Transformers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpudiag.training.loop.callbacks.driven import DrivenSession

if TYPE_CHECKING:
    TrainerCallback = object
else:
    from transformers import TrainerCallback


class TransformersCallback(TrainerCallback):
    """Measure the steps of `Trainer.train`, as `gpudiag.profile` measures the steps of a loop.

        trainer = Trainer(model, arguments, callbacks=[gpudiag.TransformersCallback("run-dir")], ...)

    A step ends with each update of the model; with `gradient_accumulation_steps` a step has several batches. Fetching
    and logging after the update belong to the next step. Steps with evaluation, a checkpoint or the end of an epoch are
    excluded. If training ends by an exception, the run keeps its measurements and is marked as not finished.

    The arguments are those of `gpudiag.profile`; the default batch size per process is the trainer's. Under `gpudiag
    profile module:function`, `run_dir` may be omitted, and training ends by default when everything is measured.

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
        self._driven = DrivenSession(run_dir, stop, log_to, options)

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:  # noqa: ARG002  # the trainer's signature, here and below
        """Open the session."""
        batch_size = args.per_device_train_batch_size * args.gradient_accumulation_steps
        self._driven.open(model=model, batch_size=batch_size, framework="pytorch")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """End a step and begin the next step."""
        if self._driven.step():
            control.should_training_stop = True

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        """Exclude evaluation from all steps."""
        self._driven.pause()

    def on_save(self, *_: Any, **__: Any) -> None:
        """Exclude a checkpoint from all steps."""
        self._driven.pause()

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        """Exclude the time between two epochs from all steps."""
        self._driven.pause()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Close the session, and keep its measurements."""
        self._driven.close()
