"""Decide how many steps to run: until step times have converged, and then until their mean is precise enough.

Step times have converged when two conditions hold for the last two blocks of steps. First, the medians of the blocks
agree within a tolerance or within the scatter of the steps. Second, there is no trend over both blocks.

Worked example. Steps take 900 | 36 35 34 34 | 30 29 31 30 ms. The first step is ignored, because it includes
compilation, autotuning and allocation. The medians of the blocks, 34.5 and 30, differ by 15 %. The scatter explains
only 4 %, so the step times have not converged. Four steps later the blocks are 30 29 31 30 | 30 30 29 30. Both medians
are 30 and there is no trend, so the step times have converged.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from gpudiag.model.structs import msgspec
from gpudiag.statistics import MAD_TO_SIGMA, mean_of, student_t

#: A `light` (kernel-only) trace has device activity, runtime calls and annotations. A `full` trace also has operators.
TraceKind = Literal["light", "full"]
#: Kinds of traces in the order of recording. The kind with the lower overhead comes first.
TRACE_KINDS: tuple[TraceKind, ...] = get_args(TraceKind)

#: Number of steps that a profiler discards first, because the first recording of a process includes the start of CUPTI.
PROFILER_WARMUP_STEPS = 2
#: Default number of recorded steps. The analysis ignores the first and the last step, so four remain.
ACTIVE_STEPS = 6
#: Minimum number of recorded steps. With fewer recorded steps, no step would remain for the analysis.
MIN_ACTIVE_STEPS = 3

#: Number of steps before the first convergence check. The first step is never used.
FIRST_CHECK_STEPS = 3
#: Tolerated relative difference between the medians of two blocks, even if the scatter is smaller.
TOLERANCE = 0.03
#: Approximate duration of a block in ms, and its minimum and maximum number of steps.
BLOCK_MS = 500.0
_BLOCK_STEPS = (3, 50)
#: Approximate duration of the unprofiled steps in ms, and their minimum and maximum number.
_UNPROFILED_MS = 3000.0
_UNPROFILED_STEPS = (10, 100)
#: Approximate duration in ms of the steps that time source lines, and their minimum and maximum number.
_LINES_MS = 1000.0
_LINE_STEPS = (6, 30)
#: Minimum number of steps that time source lines if there are few unprofiled steps.
_FEWEST_LINE_STEPS = 3
#: Minimum numbers of warm-up steps and of unprofiled steps, unless the user sets them.
MIN_WARMUP_STEPS = FIRST_CHECK_STEPS + 2 * _BLOCK_STEPS[0]
MIN_UNPROFILED_STEPS = _UNPROFILED_STEPS[0]

#: Maximum number of values in a trend test, because every pair of values is compared.
_TREND_VALUES = 100
#: Maximum number of unprofiled steps before the next decision, to limit the effect of a wrongly estimated step time.
_MAX_BLOCK_STEPS = 2000


class WarmupLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of automatic warm-up. Warm-up ends when either limit is reached.

    Attributes:
        steps: maximum number of warm-up steps.
        seconds: maximum time after the first check. Before this check libraries are loaded and compiled without limit.
    """

    steps: int = 2000
    seconds: float = 60.0


class TimingTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Required precision of the mean step time.

    Attributes:
        accuracy: half the 95 % confidence interval, as a share of the mean.
        seconds: maximum total time of unprofiled steps.
    """

    accuracy: float
    seconds: float


def block_length(step_ms: float, block_ms: float = BLOCK_MS) -> int:
    """Return the number of steps of a block that takes about `block_ms`: at least 3 and at most 50."""
    fewest, most = _BLOCK_STEPS
    return most if step_ms * most <= block_ms else max(fewest, math.ceil(block_ms / step_ms))


def has_converged(step_ms: Sequence[float], block: int) -> bool:
    """Return whether the last two blocks of `block` steps have converged; False if there are fewer steps."""
    if len(step_ms) < 2 * block:
        return False
    recent = step_ms[-2 * block :]
    older, newer = recent[:block], recent[block:]
    typical = statistics.median(newer)
    if typical <= 0:  # steps too short for the clock have no relative difference
        return True
    shift = abs(statistics.median(older) - typical) / typical
    # The standard error of a median of n normal values is 1.2533 sigma / sqrt(n). The difference of two medians has a
    # standard error that is sqrt(2) times as large. The scatter explains a shift of up to two such errors.
    scatter = statistics.fmean((_sigma(older), _sigma(newer))) / typical
    explained_shift = 2 * 1.2533 * math.sqrt(2 / block) * scatter
    return shift <= max(TOLERANCE, explained_shift) and not has_trend(recent)


def has_trend(step_ms: Sequence[float]) -> bool:
    """Return whether at least 4 steps have a significant trend that exceeds `TOLERANCE` from the first to the last.

    The Mann-Kendall test gives the trend's significance (H. B. Mann, Econometrica 13, 1945; normal approximation with
    continuity correction). The Theil-Sen slope gives its size (P. K. Sen, JASA 63, 1968). A single slow step affects
    neither much.
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
    typical = statistics.median(step_ms)
    # `student_t(math.inf)` is the two-sided 95 % quantile of the normal distribution.
    return typical > 0 and z > student_t(math.inf) and abs(statistics.median(slopes)) * (n - 1) > TOLERANCE * typical


def downsampled(step_ms: Sequence[float]) -> Sequence[float]:
    """Return a series of at most 100 steps unchanged; of a longer series, the medians of 100 pieces of equal length."""
    if len(step_ms) <= _TREND_VALUES:
        return step_ms
    edges = [piece * len(step_ms) // _TREND_VALUES for piece in range(_TREND_VALUES + 1)]
    return [statistics.median(step_ms[begin:end]) for begin, end in itertools.pairwise(edges)]


def steps_to_next_check(step_ms: Sequence[float], block_ms: float = BLOCK_MS) -> int:
    """Return the number of steps before the next convergence check: at least one block, and two blocks in total.

    The last 4 steps determine the length of a block, because steps become shorter during warm-up.
    """
    block = block_length(statistics.median(step_ms[-4:]), block_ms)
    return max(2 * block - len(step_ms), block)


def default_unprofiled_steps(step_ms: float) -> int:
    """Return the number of steps that take about three seconds: at least 10, at most 100."""
    fewest, most = _UNPROFILED_STEPS
    return most if step_ms * most <= _UNPROFILED_MS else max(fewest, round(_UNPROFILED_MS / step_ms))


def line_steps(step_ms: float, unprofiled_steps: int) -> int:
    """Return the number of steps that time source lines: about one second, at least 6 and at most 30.

    These steps are at most a third of the unprofiled steps, but at least `_FEWEST_LINE_STEPS`.
    """
    fewest, most = _LINE_STEPS
    wanted = max(fewest, min(most, round(_LINES_MS / max(step_ms, 1e-3))))
    return min(wanted, max(_FEWEST_LINE_STEPS, unprofiled_steps // 3))


def split_short_loop(steps: int, *, lines: bool) -> tuple[int, int]:
    """Return the numbers of warm-up steps and of unprofiled steps for a short loop.

    Args:
        steps: number of steps of the loop that are not recorded, at least `fewest_steps`.
        lines: True if source lines are timed in further steps.
    """
    if not lines:  # a third of the steps warms up
        warmup = max(1, steps // 3)
        return warmup, steps - warmup
    # A quarter of the steps warms up. A quarter of the rest, but at least `_FEWEST_LINE_STEPS`, is left for lines.
    warmup = max(1, steps // 4)
    left = steps - warmup
    return warmup, min(left - _FEWEST_LINE_STEPS, 3 * left // 4)


def fewest_steps(*, lines: bool) -> int:
    """Return the minimum number of steps besides recorded steps: one warm-up, one unprofiled, and those for lines."""
    return 2 + _FEWEST_LINE_STEPS * lines


def first_block(step_ms: float, target: TimingTarget) -> int:
    """Return the number of unprofiled steps before the first check of their mean.

    These steps take about `BLOCK_MS`, and are at least 10, but not more than the target's time and `_MAX_BLOCK_STEPS`
    allow. In any case there are 2, because one step has no confidence interval.
    """
    affordable = math.floor(1e3 * target.seconds / max(step_ms, 1e-3))
    wanted = max(_UNPROFILED_STEPS[0], math.ceil(BLOCK_MS / max(step_ms, 1e-3)))
    return max(2, min(_MAX_BLOCK_STEPS, wanted, affordable))


def next_block(ranks: Sequence[Sequence[float]], target: TimingTarget) -> int:
    """Return the number of additional unprofiled steps, at least 2.

    Return 0 if the target is met, the time left is too short for 2 steps, or the slowest rank has only one step.

    Args:
        ranks: the step times of each rank in ms.
        target: the required precision.
    """
    slowest = max(ranks, key=lambda times: statistics.fmean(times) if times else 0.0)
    if len(slowest) < 2:  # one step has no confidence interval
        return 0
    step_ms = statistics.fmean(slowest)
    left_ms = 1e3 * target.seconds - math.fsum(slowest)
    accuracy = max(mean_of(times).relative_half_width for times in ranks if len(times) > 1)
    if accuracy <= target.accuracy or left_ms < 2 * step_ms:
        return 0
    # The confidence interval shrinks with the square root of the number of steps. Before the next check run half of the
    # missing steps, but at least a block, because each check costs a synchronization.
    missing = len(slowest) * ((accuracy / target.accuracy) ** 2 - 1)
    affordable = min(_MAX_BLOCK_STEPS, math.floor(left_ms / step_ms))
    return max(2, min(affordable, max(math.ceil(BLOCK_MS / step_ms), math.ceil(missing / 2))))


def recording_steps(active: int) -> int:
    """Return the total number of steps of both recordings, including the steps that the profiler discards."""
    return len(TRACE_KINDS) * (PROFILER_WARMUP_STEPS + active)


def suggest_arguments(ran: int, missing: int, *, at_least: bool, run_in: int, lines: bool) -> str:
    """Return a sentence on how many more steps the loop needs, and which arguments of `gpudiag.profile` fit its length.

    Args:
        ran: number of steps of the loop.
        missing: number of missing steps.
        at_least: True if `missing` is a lower bound.
        run_in: number of steps between the warm-up and the unprofiled steps.
        lines: True if some steps time source lines.

    Worked example. A loop has 19 steps on a CPU. Two recordings of 2 + 3 steps leave 9. Of these, 2 warm up, 4 are
    unprofiled and 3 time lines: `warmup=2, steps=4, active=3`.
    """
    needed = f"{'at least ' * at_least}{missing} more step{'s' * (missing != 1)} would be enough"
    remaining = ran - recording_steps(MIN_ACTIVE_STEPS) - run_in
    fewest = fewest_steps(lines=lines)
    if remaining < fewest:
        return f"{needed}; a measurement needs at least {ran - remaining + fewest} steps with any arguments"
    warmup, steps = split_short_loop(remaining, lines=lines)
    arguments = f"warmup={warmup}, steps={steps}, active={MIN_ACTIVE_STEPS}"
    return f"{needed}, or gpudiag.profile(…, {arguments}) with these {ran}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseSettings:
    """Lengths of the phases.

    Attributes:
        steps: number of unprofiled steps; None to choose the number by the step time.
        warmup: number of warm-up steps; None to warm up until step times have converged.
        active: number of recorded steps per trace.
        limits: limits of automatic warm-up.
        target: required precision of the step time, which determines the number of unprofiled steps unless `steps` is
            set; None without a requirement.
        recorded: False to profile no steps.
        suggest: function that suggests arguments for a loop that is too short, as `suggest_arguments` does.
        lines: True to time source lines of the user.
        save_after_s: seconds until the unprofiled steps are first saved. The interval doubles after each save. Saved
            steps survive a signal that ends the process. A save takes a few ms, and all saves take 0.1 % of the time.
    """

    steps: int | None = None
    warmup: int | None = None
    active: int = ACTIVE_STEPS
    limits: WarmupLimits = WarmupLimits()  # noqa: RUF009  # immutable
    target: TimingTarget | None = None
    recorded: bool = True
    suggest: Callable[..., str] = suggest_arguments
    lines: bool = False
    save_after_s: float = math.inf


def _sigma(values: Sequence[float]) -> float:
    centre = statistics.median(values)
    return MAD_TO_SIGMA * statistics.median([abs(value - centre) for value in values])
