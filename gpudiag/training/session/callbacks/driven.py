"""A session whose steps are told by callbacks: opened when training begins, closed when all is measured or it ends."""

from __future__ import annotations

import os
from typing import Any

from gpudiag.training.session.launched import launched
from gpudiag.training.session.session import Session


class DrivenSession:
    """What the callbacks of all trainers share.

    Args:
        run_dir: the run directory; may be left out under `gpudiag profile module:function`.
        stop: end training when all is measured; by default only under `gpudiag profile`.
        options: the other arguments of `gpudiag.profile`.
    """

    def __init__(self, run_dir: str | os.PathLike[str] | None, stop: bool | None, options: dict[str, Any]) -> None:
        self._run_dir = run_dir
        self._stop = launched() is not None if stop is None else stop
        self._options = options
        self._session: Session | None = None

    def open(self, **known: Any) -> None:
        """Training begins. `known` is what the trainer tells; the user's own arguments come first.

        Raises:
            UsageError: as `gpudiag.profile`.
        """
        # Once all is measured the session is closed, and the trainer goes on without it.
        self._session = Session(self._run_dir, stop=True, **{**known, **self._options}).__enter__()

    def step(self) -> bool:
        """A step ends and the next begins. True when the trainer is to end here."""
        if self._session is None or self._session.step():
            return False
        self.close()
        return self._stop

    def pause(self) -> None:
        """What follows (validation, a checkpoint) belongs to no step."""
        if self._session is not None:
            self._session.pause()

    def close(self, error: BaseException | None = None) -> None:
        """Keep what there is; `error` ended the training."""
        if self._session is not None:
            session, self._session = self._session, None
            session.__exit__(None if error is None else type(error), error, None)
