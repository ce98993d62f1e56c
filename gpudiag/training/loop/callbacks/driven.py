"""Open a session when a trainer begins training, and close it when the measurement is complete."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from gpudiag.training.loop.launched import launched
from gpudiag.training.loop.session import Session
from gpudiag.training.loop.trackers.log_later import LogLater


class DrivenSession:
    """The session of a trainer's callback.

    Args:
        run_dir, options: arguments of `gpudiag.profile`.
        stop: end the training when everything is measured. None to end the training only under `gpudiag profile`.
        log_to: trackers to which rank 0 logs the run after the measurement; None for no tracker.

    Raises:
        UsageError: there is no such tracker.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str] | None,
        stop: bool | None,
        log_to: str | Sequence[str] | None,
        options: dict[str, Any],
    ) -> None:
        self._run_dir = run_dir
        self._stop = launched() is not None if stop is None else stop
        self._options = options
        self._session: Session | None = None
        self._log = None if log_to is None else LogLater(log_to)

    def open(self, *, mlflow: tuple[Any, str] | None = None, **known: Any) -> None:
        """Open the session. The user's options take precedence over the values in `known`.

        Args:
            mlflow: client and id of the trainer's run, if the trainer opened the run with its own client; else None.
            known: arguments of `gpudiag.profile` with the trainer's values.

        Raises:
            UsageError: `gpudiag.profile` refuses the arguments.
        """
        if self._log is not None:
            self._log.remember(mlflow=mlflow)
        # With stop=True, `Session.step` returns False when everything is measured, even if the training continues.
        self._session = Session(self._run_dir, stop=True, **{**known, **self._options}).__enter__()

    def step(self) -> bool:
        """End a step and begin the next step. Return whether the trainer should stop training."""
        if self._session is None:  # the measurement is over, and its analysis may be complete
            if self._log is not None:
                self._log.poll()
            return False
        if self._session.step():
            return False
        self._close()
        return self._stop

    def pause(self) -> None:
        """Exclude the following code (validation, a checkpoint) from all steps."""
        if self._session is not None:
            self._session.pause()

    def close(self, error: BaseException | None = None) -> None:
        """Close the session, keep its measurements, and log the run. A failure of a tracker raises no exception.

        `error` is the exception that ended the training, or None.
        """
        self._close(error)
        if self._log is not None:
            self._log.finish()

    def _close(self, error: BaseException | None = None) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            session.__exit__(None if error is None else type(error), error, None)
            if self._log is not None and session.first:
                self._log.begin(session.run_dir)
