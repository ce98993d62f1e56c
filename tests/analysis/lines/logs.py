"""Build logs of line events for tests."""

from __future__ import annotations

from typing import Literal

from gpudiag.model.source_lines.log import CALL, LEAVE, PAUSE, STEP, Code, Events, LogSection, ProcessLines

#: (time in ns, code, value) of an event.
Row = tuple[int, int, int]

MAIN, HELPER, HOOK, LIBRARY = range(4)
CODES = [
    Code("/project/train.py", "main", 1, own=True),
    Code("/project/train.py", "helper", 20, own=True),
    Code("/project/train.py", "hook", 40, own=True),
    Code("/site-packages/trainer/loop.py", "Trainer.fit", 7, own=False),
]


def events(rows: list[Row]) -> Events:
    """Return the rows as columns; the column of times has differences to the previous event."""
    times = [at_ns for at_ns, _, _ in rows]
    return Events(
        [now - before for before, now in zip([0, *times], times, strict=False)],
        [code for _, code, _ in rows],
        [value for _, _, value in rows],
    )


def log_of(
    rows: list[Row],
    *,
    threads: list[list[Row]] = [],  # noqa: B006  # never changed
    stack: list[tuple[int, int]] = [(MAIN, 9)],  # noqa: B006  # never changed
    kind: Literal["alone", "light", "full"] = "alone",
    by: Literal["events", "traced"] = "events",
) -> ProcessLines:
    """Return the log of a process with one section of line events.

    `rows` are the events of the training thread, `threads` those of each other thread, recorded with `sys.monitoring`
    or `sys.settrace` (`by`). `stack` is (code, line) of the frames around the loop. `kind` states whether the steps
    were unprofiled, in a kernel-only trace, or in a full trace.
    """
    return ProcessLines(
        schema="gpudiag/lines/1",
        pid=7,
        parent=1,
        by=by,
        directory="/project",
        stack=stack,
        codes=CODES,
        texts={"/project/train.py": {"5": "    helper()", "22": "    time.sleep(1)"}},
        sections=[LogSection(kind, events(rows), [events(more) for more in threads])],
    )


def step_rows(begin_ns: int, middle: list[Row], end_ns: int) -> list[Row]:
    """Return the events of a step: its begin, `middle`, and its end, after which gpudiag's own work begins."""
    return [(begin_ns, -1, STEP), *middle, (end_ns, -1, PAUSE)]


def calling(begin_ns: int, line: int, length_ns: int) -> list[Row]:
    """Return a call of `helper` from line 5 of `main`, up to line 9; `helper` runs its line `line` for `length_ns`."""
    return [
        (begin_ns, MAIN, 5),
        (begin_ns, HELPER, CALL),
        (begin_ns, HELPER, line),
        (begin_ns + length_ns, HELPER, LEAVE),
        (begin_ns + length_ns, MAIN, 9),
    ]
