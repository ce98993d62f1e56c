"""`--parallel`: read a layout of parallelism such as `pp=2,dp=2,microbatches=8`."""

from __future__ import annotations

from gpudiag.commands.command_line.options import split_words
from gpudiag.errors import UsageError
from gpudiag.model.run import DIMENSIONS, SCHEDULES, ParallelLayout

METAVAR = "pp=N,dp=N,ep=N,cp=N,tp=N"
_EXAMPLE = "For example: --parallel pp=2,dp=2,microbatches=8,schedule=1f1b."
#: Default number of microbatches per stage. With fewer microbatches most of the pipeline is idle.
_MICROBATCHES = 2


def read_layout(text: str | None) -> ParallelLayout | None:
    """Return the layout; None if the option was not given.

    Raises:
        UsageError: a word is unknown, given twice, or has no valid value.
    """
    if text is None:
        return None
    values: dict[str, str] = {}
    for word in split_words(text) or ("",):  # an empty list is refused like an unknown word
        name, equals, value = word.partition("=")
        if name not in (*DIMENSIONS, "microbatches", "schedule") or not equals:
            known = ", ".join(f"{dimension}=N" for dimension in (*DIMENSIONS, "microbatches"))
            raise UsageError(f"--parallel takes {known} and schedule=NAME, not '{word}'", _EXAMPLE)
        if name in values:
            raise UsageError(f"--parallel gives {name} twice", _EXAMPLE)
        values[name] = value
    schedule = next((known for known in SCHEDULES if known == values.get("schedule", "1f1b")), None)
    if schedule is None:
        raise UsageError(f"--parallel has no schedule '{values['schedule']}'", f"There are: {', '.join(SCHEDULES)}.")
    counts = {name: _count(name, value) for name, value in values.items() if name != "schedule"}
    pp = counts.get("pp", 1)
    if pp == 1 and not values.keys().isdisjoint({"microbatches", "schedule"}):
        raise UsageError("--parallel: microbatches and schedule go with pp=2 or more", _EXAMPLE)
    if pp > 1:
        counts.setdefault("microbatches", _MICROBATCHES * pp)
    return ParallelLayout(schedule=schedule, **counts)


def _count(name: str, value: str) -> int:
    if not value.isdecimal() or not 0 < int(value) < 10_000:
        raise UsageError(f"--parallel: {name} is a number from 1 on, not '{value}'", _EXAMPLE)
    return int(value)
