"""Host time by lines of the user's source."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudiag.model.quantities import Count, Milliseconds

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
