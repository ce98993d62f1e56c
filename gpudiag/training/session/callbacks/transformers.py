"""`gpudiag.TransformersCallback`: measures the `Trainer` of Hugging Face's Transformers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gpudiag.training.session.callbacks.driven import DrivenSession

if TYPE_CHECKING:
    TrainerCallback = object
else:
    from transformers import TrainerCallback


class TransformersCallback(TrainerCallback):
    """Measure the steps of `Trainer.train`, as `gpudiag.profile` does those of a loop.

        trainer = Trainer(model, arguments, callbacks=[gpudiag.TransformersCallback("run-dir")], ...)

    A step ends with each update of the model: with `gradient_accumulation_steps` it has several batches. Fetching and
    logging belong to the step that follows; evaluation, checkpoints and the ends of epochs to none, and the step
    that they fall into is left out. An exception leaves the run as not finished, with what was measured until then.

    Args:
        run_dir: the run directory; may be left out under `gpudiag profile module:function`.
        stop: end training when all is measured; by default only under `gpudiag profile`.
        options: the other arguments of `gpudiag.profile`; the batch size per process is the trainer's.

    Raises:
        UsageError: as `gpudiag.profile`, when training begins.
    """

    def __init__(
        self, run_dir: str | os.PathLike[str] | None = None, *, stop: bool | None = None, **options: Any
    ) -> None:
        self._driven = DrivenSession(run_dir, stop, options)

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:  # noqa: ARG002  # the trainer's signature, here and below
        """Open the session."""
        batch_size = args.per_device_train_batch_size * args.gradient_accumulation_steps
        self._driven.open(model=model, batch_size=batch_size, framework="pytorch")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """The last step ends and the next begins."""
        if self._driven.step():
            control.should_training_stop = True

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        """Evaluation belongs to no step."""
        self._driven.pause()

    def on_save(self, *_: Any, **__: Any) -> None:
        """Nor does a checkpoint."""
        self._driven.pause()

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        """Nor does what is between two epochs."""
        self._driven.pause()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Keep what there is."""
        self._driven.close()
