"""What a process knows when gpudiag itself started it; its sessions take their run directory and options from here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003  # part of the dataclass's public signature
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpudiag.worker.enough import Enough


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """The run that this process is part of.

    Attributes:
        run_dir: where every session of this process writes, whatever directory it was given.
        workload: what is trained: a built-in name or `module:function`.
        framework: `pytorch` or `tensorflow`.
        strategy: how gradients are exchanged; `own` where the user's function decides.
        steps: timed steps; None to choose by their length.
        warmup: warm-up steps; None to find out.
        command: the command line that started the run.
        options: other options, for the record.
        enough: how well the step time is to be known, which decides on the number of timed steps.
        warmup_s: automatic warm-up ends after this long in any case; None for the session's own limit.
        recorded: False where no steps are to be profiled.
    """

    run_dir: Path
    workload: str
    strategy: str
    framework: str = "pytorch"
    steps: int | None = None
    warmup: int | None = None
    command: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    enough: Enough | None = None
    warmup_s: float | None = None
    recorded: bool = True


_current: Launched | None = None


def set_launched(launched: Launched | None) -> None:
    """Called once, by the program that gpudiag starts, before it trains."""
    global _current  # noqa: PLW0603  # a process is started once
    _current = launched


def launched() -> Launched | None:
    """The run that this process was started for, or None in a program that the user started."""
    return _current
