"""Host time by lines of the user's source, as one rank records it.

`lines/rank<r>.json` in a run directory holds one `RankLines`: means over unprofiled steps, and the line of each instant
of the recorded steps.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudiag.model.quantities import Count, Milliseconds, Ordinal

LINES_SCHEMA: Literal["gpudiag/lines/1"] = "gpudiag/lines/1"
LINES_DIR = "lines"
#: The file of one worker process of a DataLoader, in `LINES_DIR`.
WORKER_LINES = "rank{rank}-worker{pid}.json"

#: What a line does, as far as it is known: the call below it that takes most of its time.
LineWork = Literal["input", "forward", "backward", "optimizer", "compile", "other"]


class SourceLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a program, and the time that the training thread spends in it per step.

    Attributes:
        file: path as the interpreter knows it; relative to the working directory if it lies below it.
        line: number of the line, from 1.
        function: qualified name of the function.
        text: the source of the line without indentation; empty if it cannot be read or must not be kept.
        own: False for a library that drives the loop (Lightning, Transformers).
        work: what the line does.
        ms: mean per step, calls below included.
        self_ms: mean per step without the lines in `children`.
        half_width_ms: half the width of the 95 % interval of `ms`; None of fewer than two steps.
        max_ms: the longest step's.
        steps_with: steps in which the line ran.
        children: the user's lines that run below this one, longest first.
    """

    file: str
    line: Count
    function: str
    text: str = ""
    own: bool = True
    work: LineWork = "other"
    ms: Milliseconds
    self_ms: Milliseconds = 0.0
    half_width_ms: Milliseconds | None = None
    max_ms: Milliseconds = 0.0
    steps_with: Count = 0
    children: tuple[SourceLine, ...] = ()


class LineTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Host time by source line of one rank.

    Attributes:
        by: `events`: line events of `sys.monitoring`. `traced`: `sys.settrace`, which stretches pure Python code.
        steps: steps that were measured.
        step_ms: mean length of these steps.
        events_per_step: line, call and return events, each of which costs about 1 µs.
        coarse: functions whose lines are not told apart, because they would cost more than the limit.
        lines: the lines of the training loop, each with the lines below it.
    """

    by: Literal["events", "traced"]
    steps: Count
    step_ms: Milliseconds
    events_per_step: float
    coarse: tuple[str, ...] = ()
    lines: tuple[SourceLine, ...] = ()


class LineSpans(msgspec.Struct, frozen=True, kw_only=True):
    """The line that the training thread was in, for every instant of some recorded steps.

    Attributes:
        positions: `(file, line, function, text)` of each line that occurs.
        parents: for each position, the index of the line that called it, which is smaller; -1 for lines of the loop.
        own: for each position, False if it is a library's.
        begin_ns, end_ns: stretches of time in the order of time, in ns since the epoch, as in traces.
        position: for each stretch, the index of its line: the deepest of the user's.
    """

    positions: tuple[tuple[str, int, str, str], ...]
    parents: tuple[int, ...]
    own: tuple[bool, ...]
    begin_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    position: tuple[int, ...]


class Compilation(msgspec.Struct, frozen=True, kw_only=True):
    """A function that `torch.compile` compiled during the measured steps.

    Attributes:
        file, line, function: the compiled function.
        times: compilations in all measured steps together.
        ms: their time, of all steps together.
        reason: the guard that failed, as PyTorch reports it; empty for a first compilation.
    """

    file: str
    line: Count
    function: str
    times: Count
    ms: Milliseconds
    reason: str = ""


class FindingSource(msgspec.Struct, frozen=True, kw_only=True):
    """The line to change for a finding.

    Attributes:
        file, line, function, text: as in `SourceLine`.
        called_from: `file:line` of the loop's line that leads to it; empty if it is in the loop itself.
        share_percent: how much of the finding's host time is in this line and below it.
    """

    file: str
    line: Count
    function: str
    text: str = ""
    called_from: str = ""
    share_percent: float | None = None


class RankLines(msgspec.Struct, frozen=True, kw_only=True):
    """The source lines of one rank.

    Attributes:
        unprofiled: means over steps without the profiler; None if none was measured.
        threads: other threads that ran the user's code, for instance hooks on autograd's device thread.
        workers: worker processes of a DataLoader; a step is a batch.
        compilations: what was compiled in the unprofiled steps.
        light, full: lines during the kernel-only and the full recording.
        unavailable: why there is nothing; empty if there is.
    """

    schema: Literal["gpudiag/lines/1"] = LINES_SCHEMA
    rank: Ordinal
    unprofiled: LineTimes | None = None
    threads: tuple[LineTimes, ...] = ()
    workers: tuple[LineTimes, ...] = ()
    compilations: tuple[Compilation, ...] = ()
    light: LineSpans | None = None
    full: LineSpans | None = None
    unavailable: str = ""
