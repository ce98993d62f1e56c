"""Define host time by source line, as an analysis reports it."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudiag.model.quantities import Count, Milliseconds, Ordinal

#: Maximum length of a line's code in a title, in characters.
_LONGEST_CODE = 60

#: Kind of work that a line calls, as far as known.
LineWork = Literal["input", "forward", "backward", "optimizer", "other"]
#: Kind of the process that runs a line: the training process, or a DataLoader's worker.
LineProcess = Literal["training", "worker"]


class SourceLocation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The line to change.

    Attributes:
        file: path; relative to the program's directory if the file lies in it.
        line: line number, from 1.
        function: qualified name of the function; "" at module level.
        text: the line without indentation; "" if it was not saved.
    """

    file: str
    line: Count
    function: str = ""
    text: str = ""

    @property
    def words(self) -> str:
        """Return place and code, for example ``train.py:12 `torch.save(…)` ``."""
        code = self.text.partition("  #")[0].rstrip()
        code = code if len(code) <= _LONGEST_CODE else f"{code[: _LONGEST_CODE - 1]}…"
        return f"{self.place} `{code}`" if code else self.place

    @property
    def place(self) -> str:
        """Return file and line, for example `train.py:12`."""
        return f"{self.file.rpartition('/')[2]}:{self.line}"


class SourceLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the user's program, in calls from one caller.

    Attributes:
        rank: rank of the process; for a worker, the rank for which it loads data.
        process: kind of the process that runs the line.
        file, line, function: see `SourceLocation`.
        source: the line with its indentation; "" if it was not saved.
        depth: number of reported lines on the call stack above the line. The caller is the last preceding line with a
            smaller depth.
        work: kind of work that the line calls.
        ms_per_step: mean time in the line and its callees, per step; in a worker, per batch.
        self_ms: time in the line outside of reported callees.
        device_idle_ms: part of `ms_per_step` in which the device was idle in the recorded steps; None if unknown.
        samples: number of measured steps (in a worker: batches).
        ci95: half the width of the 95 % interval of `ms_per_step`; None if fewer than two steps were measured.
        estimated: True if the line runs too often to be timed each time. Then its share of its function's time is
            measured in the first steps, and assumed in all later steps.
    """

    rank: Ordinal = 0
    process: LineProcess = "training"
    file: str
    line: Count
    function: str
    source: str = ""
    depth: Count = 0
    work: LineWork = "other"
    ms_per_step: Milliseconds
    self_ms: Milliseconds
    device_idle_ms: Milliseconds | None = None
    samples: Count
    ci95: Milliseconds | None = None
    estimated: bool = False

    @property
    def location(self) -> SourceLocation:
        """Return the location of the line."""
        return SourceLocation(file=self.file, line=self.line, function=self.function, text=self.source.strip())
