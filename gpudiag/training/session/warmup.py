"""When has a training loop settled? Decided from its step times alone, whether a step takes 2 ms or 5 s.

Two consecutive blocks of steps are compared. The loop has settled when their medians agree, within a tolerance or
within what the scatter of the steps explains, and when no trend runs through both blocks.

Worked example. Steps (ms): 900 | 40 34 31 30 | 30 29 31 30. The first step is dropped (it holds compilation, autotuning
and allocation). Medians of the two blocks: 32.5 and 30, 8 % apart; scatter explains about 4 %: not settled. Four
steps later the blocks are 30 29 31 30 | 30 30 29 30: medians 30 and 30, no trend: settled.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from gpudiag.model.structs import msgspec
from gpudiag.statistics import MAD_TO_SIGMA, student_t

#: Steps before the first decision. The first of them is never used.
FIRST_LOOK = 3

#: Two blocks may differ by this part of a step even where the scatter is smaller.
TOLERANCE = 0.03

#: A block holds about this long, and between these many steps.
BLOCK_MS = 500.0
_BLOCK_STEPS = (3, 50)

#: Timed steps last about this long, and are between these many.
_TIMED_MS = 3000.0
_TIMED_STEPS = (10, 100)

#: Fewer steps than these neither settle nor are enough to time, unless that is told.
FEWEST_STEPS = FIRST_LOOK + 2 * _BLOCK_STEPS[0]
FEWEST_UNPROFILED = _TIMED_STEPS[0]

#: Trends are looked for among this many values: every pair of them is compared.
_OUTLINE = 100


class WarmupLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Where warm-up ends although the steps have not settled: at whichever of the two comes first.

    Attributes:
        steps: all of them.
        seconds: from the first look on: the steps before it load libraries and compile.
    """

    steps: int = 2000
    seconds: float = 60.0


def block_length(step_ms: float, block_ms: float = BLOCK_MS) -> int:
    """Steps per block of about `block_ms` for steps of this median length: at least 3 and at most 50 steps."""
    fewest, most = _BLOCK_STEPS
    return most if step_ms * most <= block_ms else max(fewest, math.ceil(block_ms / step_ms))


def has_settled(step_ms: Sequence[float], block: int) -> bool:
    """Do the last two blocks of `block` steps agree, with no trend through them?

    Args:
        step_ms: times of all steps so far, the first excluded; any unit, since only ratios count.
        block: steps per block; False when there are not two blocks yet.
    """
    if len(step_ms) < 2 * block:
        return False
    recent = step_ms[-2 * block :]
    older, newer = recent[:block], recent[block:]
    level = statistics.median(newer)
    if level <= 0:
        return True
    shift = abs(statistics.median(older) - level) / level
    # The standard error of a median of n normal values is 1.2533 sigma / sqrt(n); of a difference of two, sqrt(2) more.
    scatter = statistics.fmean((_sigma(older), _sigma(newer))) / level
    explained = 2 * 1.2533 * math.sqrt(2 / block) * scatter
    return shift <= max(TOLERANCE, explained) and not trending(recent)


def trending(step_ms: Sequence[float]) -> bool:
    """Is there a trend that is both significant and worth more than the tolerance over the whole series?

    Significance is the Mann-Kendall test's (H. B. Mann, Econometrica 13, 1945; normal approximation with continuity
    correction), the size of the trend is Theil's and Sen's slope (P. K. Sen, JASA 63, 1968). Both rest on ranks and
    medians, so that one slow step does not make a trend.
    """
    n = len(step_ms)
    if n < 4:
        return False
    score = 0
    slopes = []
    for j in range(1, n):
        for i in range(j):
            difference = step_ms[j] - step_ms[i]
            score += (difference > 0) - (difference < 0)
            slopes.append(difference / (j - i))
    z = (abs(score) - 1) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    level = statistics.median(step_ms)
    return level > 0 and z > student_t(math.inf) and abs(statistics.median(slopes)) * (n - 1) > TOLERANCE * level


def outline(step_ms: Sequence[float]) -> Sequence[float]:
    """At most `_OUTLINE` values that rise and fall as the series does: medians of equal pieces of a longer one."""
    if len(step_ms) <= _OUTLINE:
        return step_ms
    edges = [piece * len(step_ms) // _OUTLINE for piece in range(_OUTLINE + 1)]
    return [statistics.median(step_ms[begin:end]) for begin, end in itertools.pairwise(edges)]


def next_look(step_ms: Sequence[float], block_ms: float = BLOCK_MS) -> int:
    """How many more steps to run before looking again: what is missing to two blocks, else one block."""
    block = block_length(statistics.median(step_ms[-4:]), block_ms)
    return max(2 * block - len(step_ms), block)


def unprofiled_steps(step_ms: float) -> int:
    """How many steps to time without the profiler when not told: about three seconds, at least 10, at most 100."""
    fewest, most = _TIMED_STEPS
    return most if step_ms * most <= _TIMED_MS else max(fewest, round(_TIMED_MS / step_ms))


def _sigma(values: Sequence[float]) -> float:
    centre = statistics.median(values)
    return MAD_TO_SIGMA * statistics.median([abs(value - centre) for value in values])
