"""A session driven by a trainer's callbacks: opened when training begins, closed when the measurement is complete."""

from __future__ import annotations

import os
from typing import Any

from gpudiag.training.loop.launched import launched
from gpudiag.training.loop.session import Session


class DrivenSession:
    """The part that the callbacks of all trainers share. `stop` ends training when everything is measured."""

    def __init__(self, run_dir: str | os.PathLike[str] | None, stop: bool | None, options: dict[str, Any]) -> None:
        self._run_dir = run_dir
        self._stop = launched() is not None if stop is None else stop
        self._options = options
        self._session: Session | None = None

    def open(self, **known: Any) -> None:
        """Open the session when training begins; the user's options precede the trainer's values.

        Raises:
            UsageError: as `gpudiag.profile`.
        """
        # Once everything is measured the session is closed, and the trainer goes on without it.
        self._session = Session(self._run_dir, stop=True, **{**known, **self._options}).__enter__()

    def step(self) -> bool:
        """End a step and begin the next. Return True when the trainer is to end here."""
        if self._session is None or self._session.step():
            return False
        self.close()
        return self._stop

    def pause(self) -> None:
        """Exclude the following code (validation, a checkpoint) from all steps."""
        if self._session is not None:
            self._session.pause()

    def close(self, error: BaseException | None = None) -> None:
        """Close the session, and keep its measurements; `error` ended the training."""
        if self._session is not None:
            session, self._session = self._session, None
            session.__exit__(None if error is None else type(error), error, None)
