"""How many optimizer steps a command must take to be measured, and which options make do with fewer."""

from __future__ import annotations

from gpudiag.training.attach.boundaries import FEWEST_CALLS
from gpudiag.training.attach.settings import Settings
from gpudiag.training.session.ending import recording_steps
from gpudiag.training.session.session import ACTIVE_STEPS
from gpudiag.training.session.warmup import FEWEST_STEPS, FEWEST_UNPROFILED

#: The fewest that `--warmup` and `--steps` are advised to be, and the most timed steps.
_FEWEST_WARMUP, _FEWEST_STEPS, _MOST_STEPS = 1, 2, 100


def needed_steps(told: Settings) -> int:
    """Return about how many optimizer steps a command must take to be measured."""
    warmup = FEWEST_STEPS if told.warmup is None else told.warmup
    return FEWEST_CALLS + 1 + warmup + (told.steps or FEWEST_UNPROFILED) + recording_steps(ACTIVE_STEPS)


def fewest_steps() -> int:
    """Return the same with the least options that are advised."""
    return needed_steps(Settings(run_dir="", command=(), warmup=_FEWEST_WARMUP, steps=_FEWEST_STEPS))


def what_would_do(ran: int, missing: int, *, at_least: bool, run_in: int) -> str:
    """Say by how many steps a command was too short.

    Args:
        ran: steps since the measuring began.
        missing: steps that it was too short by; `at_least` where it may be more.
        run_in: steps between the warm-up and the timed ones.

    Worked example. Of 29 steps two recordings of 2 + 6 leave 13, a third of which warm up: `--warmup 4 --steps 9`.
    """
    left = ran - recording_steps(ACTIVE_STEPS) - run_in
    fits = left >= _FEWEST_WARMUP + _FEWEST_STEPS
    needed = f"{'at least' if at_least else 'about'} {missing} more step{'s are' if missing != 1 else ' is'} needed"
    if at_least and fits:  # by how many is not known
        needed = "more steps are needed until their times have settled"
    if not fits:
        return needed
    warmup = max(_FEWEST_WARMUP, left // 3)
    return f"{needed}, or --warmup {warmup} --steps {min(_MOST_STEPS, left - warmup)}"
