"""When have enough steps been timed? When their mean is known as well as was asked, or when the time is used up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from gpudiag.model.structs import msgspec
from gpudiag.statistics import mean_of

#: Fewer steps say little of their own scatter.
_FEWEST = 10
#: A look costs a synchronization: no more often than this.
_BLOCK_MS = 500.0
#: The longest block, so that a wrong guess of the step time does no harm.
_MOST_STEPS = 2000


class Enough(msgspec.Struct, frozen=True, kw_only=True):
    """How well a mean step time is to be known.

    Attributes:
        accuracy: half the 95 % confidence interval, as a share of the mean.
        seconds: timed steps may take this long in all; then what there is has to do.
    """

    accuracy: float
    seconds: float


def first_block(step_ms: float, enough: Enough) -> int:
    """How many steps to time before the first look, for steps of about this length."""
    within = 1e3 * enough.seconds / max(step_ms, 1e-3)
    return max(2, min(_MOST_STEPS, max(_FEWEST, math.ceil(_BLOCK_MS / max(step_ms, 1e-3))), math.floor(within)))


def next_block(ranks: Sequence[Sequence[float]], enough: Enough) -> int:
    """How many more steps to time; 0 for no more.

    Args:
        ranks: the times in milliseconds of the steps so far, of each rank.
        enough: what was asked.
    """
    slowest = max(ranks, key=lambda times: statistics.fmean(times) if times else 0.0)
    if len(slowest) < 2:
        return 0
    step_ms = statistics.fmean(slowest)
    left_ms = 1e3 * enough.seconds - math.fsum(slowest)
    known = max(mean_of(times).relative_half_width for times in ranks if len(times) > 1)
    if known <= enough.accuracy or left_ms < 2 * step_ms:
        return 0
    # The interval narrows with the root of the number of steps.
    needed = len(slowest) * ((known / enough.accuracy) ** 2 - 1)
    most = min(_MOST_STEPS, math.floor(left_ms / step_ms))
    return max(2, min(most, max(math.ceil(_BLOCK_MS / step_ms), math.ceil(needed / 2))))
