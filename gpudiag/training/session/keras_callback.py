"""`gpudiag.KerasCallback`: measures `model.fit`."""

from __future__ import annotations

import os
from collections.abc import Generator
from itertools import repeat
from typing import Any

import keras

from gpudiag.training.session.launched import launched
from gpudiag.training.session.session import Session


class KerasCallback(keras.callbacks.Callback):  # type: ignore[misc]  # keras is untyped
    """Measure the steps of `model.fit`, as `gpudiag.profile` does those of a loop.

        model.fit(data, epochs=3, callbacks=[gpudiag.KerasCallback("run-dir", batch_size=64)])

    A step goes from the start of one batch to the start of the next. Keras takes the batch within it, which
    TensorFlow's own events show. The last step of an epoch, with whatever follows it, is left out. With
    `steps_per_execution` each execution counts as one step. What fetching takes of a timed step is not told.

    Args:
        run_dir: the run directory; may be left out under `gpudiag profile module:function`.
        stop: end training when all is measured; by default only under `gpudiag profile`.
        options: the other arguments of `gpudiag.profile`, but for `model` and `framework`.

    Raises:
        UsageError: as `gpudiag.profile`, when training begins.
    """

    def __init__(
        self, run_dir: str | os.PathLike[str] | None = None, *, stop: bool | None = None, **options: Any
    ) -> None:
        super().__init__()
        self._run_dir = run_dir
        self._stop = launched() is not None if stop is None else stop
        self._options = options
        self._session: Session | None = None
        self._steps: Generator[None] | None = None

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002  # Keras's signature, here and below
        """Open the session."""
        session = Session(self._run_dir, model=self.model, framework="tensorflow", stop=True, **self._options)
        session.sees_input = False
        self._session = session.__enter__()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """The last step ends and the next begins."""
        if self._session is None:
            return
        if self._steps is None:
            self._steps = self._session.steps(repeat(None))  # type: ignore[assignment]  # a generator is returned
        assert self._steps is not None  # noqa: S101  # set above
        if next(self._steps, self) is self:
            self._close()
            if self._stop:
                self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """What follows (validation, checkpoints) belongs to no step."""
        if self._steps is not None:
            self._steps.close()
            self._steps = None

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Keep what there is."""
        self._close()

    def _close(self) -> None:
        if self._steps is not None:
            self._steps.close()
            self._steps = None
        if self._session is not None:
            session, self._session = self._session, None
            session.__exit__(None, None, None)
