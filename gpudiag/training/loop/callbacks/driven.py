"""Open a session when a trainer begins training, and close it when the measurement is complete."""

from __future__ import annotations

import os
from typing import Any

from gpudiag.training.loop.launched import launched
from gpudiag.training.loop.session import Session


class DrivenSession:
    """The session of a trainer's callback. With `stop`, training ends when everything is measured."""

    def __init__(self, run_dir: str | os.PathLike[str] | None, stop: bool | None, options: dict[str, Any]) -> None:
        self._run_dir = run_dir
        self._stop = launched() is not None if stop is None else stop
        self._options = options
        self._session: Session | None = None

    def open(self, **known: Any) -> None:
        """Open the session. The user's options take precedence over `known`, the trainer's values.

        Raises:
            UsageError: for the reasons of `gpudiag.profile`.
        """
        # With stop=True, `Session.step` returns False when everything is measured, even if the trainer goes on.
        self._session = Session(self._run_dir, stop=True, **{**known, **self._options}).__enter__()

    def step(self) -> bool:
        """End a step and begin the next. Return whether the trainer should stop training."""
        if self._session is None or self._session.step():
            return False
        self.close()
        return self._stop

    def pause(self) -> None:
        """Exclude the following code (validation, a checkpoint) from all steps."""
        if self._session is not None:
            self._session.pause()

    def close(self, error: BaseException | None = None) -> None:
        """Close the session, and keep its measurements. `error` is the exception that ended the training, if any."""
        if self._session is not None:
            session, self._session = self._session, None
            session.__exit__(None if error is None else type(error), error, None)
