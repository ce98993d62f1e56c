"""From what was predicted and measured to the verdict: a winner, or a tie."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence

import msgspec

from gpudiag.app.recommend.candidates import code_change, flags
from gpudiag.errors import HardwareMissingError
from gpudiag.model.benchmarks.prediction import Candidate, Prediction
from gpudiag.model.benchmarks.recommendation import Gain, Ranked, Recommendation, StepCeiling
from gpudiag.model.benchmarks.strategy_benchmark import NO_TIME, RANKED_ROUNDS, StrategyBenchmark, Turns
from gpudiag.model.job import INDEPENDENT
from gpudiag.statistics import mean_of
from gpudiag.training.strategies.predict import MAY_ERR, preference, usual_strategies

#: Measured strategies closer than this are a tie even if the interval is narrower: no second run would agree with it.
TIE_MEASURED = 0.005
#: Width in percent of an interval from which the machine was too restless to tell much.
_SCATTERED = 10.0
#: A mean known to no better than this (drifts that all have in common aside) ranks nothing.
_STEADY = 0.10
#: Predictions closer than this are a tie: they are not more exact than that.
TIE_PREDICTED = 0.02


def judge(benchmark: StrategyBenchmark, *, seconds: float | None = None) -> Recommendation:
    """The verdict on what was measured; by prediction alone where no strategy was.

    Candidates are compared turn by turn of the same round, so that a drift of the machine cancels out. One that is
    slower than the fastest by an interval that holds 0, or by less than 0.5 %, is tied with it. What was not measured
    long enough to say whether it is slower has no place in the ranking, and there is no winner over it.
    """
    measured = {
        turn.candidate.label: turn for turn in benchmark.turns if len(turn.round_ms) > 1 and turn.cannot is None
    }
    failed = {turn.candidate.label: turn.cannot for turn in benchmark.turns if turn.cannot is not None}
    racing = {label: turn for label, turn in measured.items() if label != INDEPENDENT}
    notes: list[str] = []
    if not racing:
        if benchmark.turns:
            notes.append("no strategy could be measured: the verdict is the prediction's")
        return from_predictions(
            benchmark.predictions,
            workload=benchmark.workload,
            devices=benchmark.devices,
            batch_size=benchmark.batch_size,
            p2p=benchmark.p2p,
            peer_access=benchmark.peer_access,
            device_name=benchmark.device_name,
            notes=notes,
            failed=failed,
        )
    known = _steady(measured)
    steady = known & set(racing)
    fastest = min(steady or racing, key=lambda label: statistics.fmean(racing[label].round_ms))
    ranked = [_ranked(one, measured, failed, fastest, benchmark) for one in benchmark.predictions]
    if len(steady) < len(racing):
        ranked = [_if_ranked(one, steady) for one in ranked]
    ranked.sort(key=_order)
    open_ = _open(ranked, fastest)
    by_label = {one.candidate.label: one.candidate for one in benchmark.predictions}
    tied = [one.strategy for one in ranked if one.strategy in racing and one.unranked is None and _is_tied(one)]
    tied = tied or [fastest]
    tied += [label for label in open_ if label not in tied]
    best, why = _taken([by_label[label] for label in tied if label in racing], steady, fastest)
    chosen = next(one for one in ranked if one.strategy == best.label)
    ceiling = _ceiling(benchmark, measured, chosen, sure=best.label in known and INDEPENDENT in known)
    rivals = [one for one in ranked if one.strategy in racing and one.strategy not in tied and one.unranked is None]
    reason = why + _reason(chosen, [one for one in ranked if one.strategy in tied], rivals)
    notes += _doubts(benchmark, ranked, racing)
    return Recommendation(
        verdict="tie" if len(tied) > 1 else "winner",
        recommended=best.label,
        tied=tuple(tied) if len(tied) > 1 else (),
        reason=reason,
        basis="measured",
        workload=benchmark.workload,
        device_name=benchmark.device_name,
        devices=benchmark.devices,
        batch_size_per_device=benchmark.batch_size,
        peer_access=benchmark.peer_access,
        gain=None if chosen.unranked else _gain(ranked, racing, best, tied),
        ceiling=ceiling,
        flags=flags(best, p2p=benchmark.p2p),
        code=code_change(best),
        ranking=tuple(ranked),
        notes=(*notes, *_lossy_note(best)),
        assumed={name: value for one in benchmark.predictions for name, value in one.assumed.items()},
        seconds=seconds,
    )


def from_predictions(
    predictions: Sequence[Prediction],
    *,
    workload: str,
    devices: int,
    batch_size: int | None,
    p2p: bool,
    peer_access: bool | None = None,
    device_name: str = "",
    notes: Sequence[str] = (),
    failed: Mapping[str, str | None] | None = None,
) -> Recommendation:
    """The verdict of predictions alone. Those within 2 % of the best are tied with it.

    Raises:
        HardwareMissingError: none of them can run.
    """
    failed = failed or {}
    possible = [
        one
        for one in predictions
        if one.cannot is None and one.candidate.label != INDEPENDENT and one.candidate.label not in failed
    ]
    ranked = [
        Ranked(
            strategy=one.candidate.label,
            predicted_step_ms=one.step_ms,
            exposed_ms=None if one.cannot else one.exposed_ms,
            exchange_ms=None if one.cannot else one.exchange_ms,
            samples_per_s=_samples(one.step_ms, devices, batch_size),
            reason=one.reason,
            lossy=one.candidate.lossy,
            cannot=one.cannot or failed.get(one.candidate.label),
        )
        for one in predictions
    ]
    ranked.sort(key=_order)
    if not possible:
        raise HardwareMissingError(
            f"no strategy can run on {devices} device{'s' if devices > 1 else ''} here",
            "See the reasons with --json, or choose another number with --devices.",
        )
    least = min(possible, key=_cost)
    tied = [one for one in possible if _cost(one) <= _cost(least) * (1 + TIE_PREDICTED)]
    best = min(tied, key=lambda one: preference(one.candidate))
    floor = next((one.step_ms for one in predictions if one.candidate.label == INDEPENDENT), None)
    reason = best.reason
    if len(tied) > 1:
        others = ", ".join(one.candidate.label for one in tied if one is not best)
        reason = (
            f"{others} would take as long within {TIE_PREDICTED:.0%}; {best.candidate.label} is the plainest. {reason}"
        )
    slower = [one for one in possible if one not in tied]
    gain = None
    if slower and best.step_ms is not None and slower[0].step_ms is not None:
        lost = slower[0].step_ms - best.step_ms
        gain = Gain(over=slower[0].candidate.label, ms=lost, percent=100 * lost / slower[0].step_ms, measured=False)
    return Recommendation(
        verdict="tie" if len(tied) > 1 else "winner",
        recommended=best.candidate.label,
        tied=tuple(one.candidate.label for one in tied) if len(tied) > 1 else (),
        reason=reason,
        basis="predicted",
        workload=workload,
        device_name=device_name,
        devices=devices,
        batch_size_per_device=batch_size,
        peer_access=peer_access,
        gain=gain,
        ceiling=None
        if floor is None
        else StepCeiling(
            step_ms=floor,
            samples_per_s=_samples(floor, devices, batch_size),
            percent_left=None if not best.step_ms else 100 * (1 - floor / best.step_ms),
            measured=False,
        ),
        flags=flags(best.candidate, p2p=p2p),
        code=code_change(best.candidate),
        ranking=tuple(ranked),
        notes=(*notes, *_lossy_note(best.candidate)),
        assumed={name: value for one in possible for name, value in one.assumed.items()},
    )


def _taken(tied: Sequence[Candidate], steady: Collection[str], fastest: str) -> tuple[Candidate, str]:
    """Of what may be the fastest the plainest, and why: what is special has to be faster, and known to be.

    What people take by default is taken even where its turns scattered; anything else only where its step is known.
    Where there is neither, the fastest that was seen.
    """
    known = [one for one in tied if one.label in steady or one.label in usual_strategies()]
    if not known:
        return next(one for one in tied if one.label == fastest), "the fastest that was seen. " if tied[1:] else ""
    best = min(known, key=preference)
    return best, f"{best.label} is the plainest. " if tied[1:] else ""


def _doubts(benchmark: StrategyBenchmark, ranked: Sequence[Ranked], racing: Collection[str]) -> list[str]:
    """What was not measured, or not long enough, and how far turns scattered."""
    notes = []
    left_out = [turn.candidate.label for turn in benchmark.turns if turn.cannot == NO_TIME]
    if left_out:
        notes.append(
            f"the budget was too small for {len(racing) + len(left_out)} strategies: measured "
            f"{', '.join(racing)}; left out {', '.join(left_out)}; a larger --budget tells"
        )
    unranked = [one.strategy for one in ranked if one.unranked is not None]
    if unranked:
        notes.append(
            f"not measured long enough to be ranked, and may be as fast: {', '.join(unranked)}; a larger --budget tells"
        )
    many = [one for one in ranked if one.rounds >= RANKED_ROUNDS and one.slower_ci95 is not None]
    widest = max((one.slower_ci95[1] - one.slower_ci95[0] for one in many if one.slower_ci95), default=0.0)
    if widest > _SCATTERED:
        notes.append(
            f"turns scattered by up to {widest / 2:.0f} %, as beside other work: measure again when nothing else runs"
        )
    return notes


def _steady(measured: Mapping[str, Turns]) -> set[str]:
    """Those whose mean is known: by itself, or beside another's turns of the same rounds, which drift as it does."""

    def uncertain(turn: Turns) -> float:
        others = [other.round_ms for other in measured.values() if other is not turn]
        ratios = [[a / b for a, b in zip(turn.round_ms, other, strict=False)] for other in others]
        series = [turn.round_ms, *(ratio for ratio in ratios if len(ratio) >= RANKED_ROUNDS)]
        return min(mean_of(values).relative_half_width for values in series)

    return {
        label for label, turn in measured.items() if len(turn.round_ms) >= RANKED_ROUNDS and uncertain(turn) <= _STEADY
    }


def _if_ranked(one: Ranked, steady: Collection[str]) -> Ranked:
    """With the reason why its measurement ranks it nowhere: unless it is known, or known to be slower."""
    if one.measured_step_ms is None or one.strategy in steady or one.strategy == INDEPENDENT:
        return one
    if one.slower_ci95 is not None and one.slower_ci95[0] > 0.0:
        return one
    return msgspec.structs.replace(one, unranked="its turns were too few or scattered too much")


def _open(ranked: Sequence[Ranked], fastest: str) -> list[str]:
    """Those that may be as fast as the fastest, for all that was measured and predicted of them."""
    best = next(one.predicted_step_ms for one in ranked if one.strategy == fastest)
    return [
        one.strategy
        for one in ranked
        if one.strategy != INDEPENDENT
        and (
            one.unranked is not None
            or (
                one.cannot == NO_TIME
                and best is not None
                and one.predicted_step_ms is not None
                and one.predicted_step_ms <= best * (1 + MAY_ERR)
            )
        )
    ]


def _cost(one: Prediction) -> float:
    return one.exposed_ms if one.step_ms is None else one.step_ms


def _order(one: Ranked) -> tuple[int, float, str]:
    """Measured ones by their figure, then predicted ones by theirs, then those that cannot run."""
    if one.cannot is not None:
        return 2, 0.0, one.strategy
    if one.measured_step_ms is not None and one.unranked is None:
        return 0, one.measured_step_ms, one.strategy
    value = one.predicted_step_ms if one.predicted_step_ms is not None else one.exposed_ms
    return 1, value or 0.0, one.strategy


def _ranked(
    one: Prediction,
    measured: dict[str, Turns],
    failed: Mapping[str, str | None],
    fastest: str,
    benchmark: StrategyBenchmark,
) -> Ranked:
    label = one.candidate.label
    turn = measured.get(label)
    step = interval = slower = slower_interval = None
    if turn is not None:
        found = mean_of(turn.round_ms)
        step, interval = found.value, (found.low, found.high)
        best = measured[fastest].round_ms
        if label == fastest:
            slower, slower_interval = 0.0, (0.0, 0.0)
        else:
            # Turns of the same round are near in time.
            ratio = mean_of([mine / other - 1 for mine, other in zip(turn.round_ms, best, strict=False)])
            slower, slower_interval = 100 * ratio.value, (100 * ratio.low, 100 * ratio.high)
    return Ranked(
        strategy=label,
        predicted_step_ms=one.step_ms,
        exposed_ms=None if one.cannot else one.exposed_ms,
        exchange_ms=None if one.cannot else one.exchange_ms,
        measured_step_ms=step,
        ci95=interval,
        rounds=0 if turn is None else len(turn.round_ms),
        samples_per_s=_samples(step if step is not None else one.step_ms, benchmark.devices, benchmark.batch_size),
        slower_percent=slower,
        slower_ci95=slower_interval,
        reason=one.reason,
        lossy=one.candidate.lossy,
        cannot=one.cannot or failed.get(label),
    )


def _is_tied(one: Ranked) -> bool:
    if one.slower_percent is None or one.slower_ci95 is None:
        return False
    return one.slower_ci95[0] <= 0.0 or one.slower_percent < 100 * TIE_MEASURED


def _samples(step_ms: float | None, devices: int, batch_size: int | None) -> float | None:
    return None if not step_ms or not batch_size else 1e3 * devices * batch_size / step_ms


def _ceiling(
    benchmark: StrategyBenchmark, measured: dict[str, Turns], chosen: Ranked, *, sure: bool
) -> StepCeiling | None:
    """What is left to save is told where both steps are known: `sure`."""
    turn = measured.get(INDEPENDENT)
    if turn is None or chosen.measured_step_ms is None:
        return None
    step = statistics.fmean(turn.round_ms)
    return StepCeiling(
        step_ms=step,
        samples_per_s=_samples(step, benchmark.devices, benchmark.batch_size),
        percent_left=100 * (1 - step / chosen.measured_step_ms) if sure else None,
        measured=True,
    )


def _gain(ranked: Sequence[Ranked], racing: dict[str, Turns], best: Candidate, tied: Sequence[str]) -> Gain | None:
    """Over what people take by default, where that is slower; else over the next that is."""
    slower = [one.strategy for one in ranked if one.strategy in racing and one.strategy not in tied]
    over = next((label for label in usual_strategies() if label in slower), slower[0] if slower else None)
    if over is None:
        return None
    mine, other = (statistics.fmean(racing[label].round_ms) for label in (best.label, over))
    if other <= mine:  # `over` is slower than the fastest; the plainest of those that tie with that may be no faster
        return None
    return Gain(over=over, ms=other - mine, percent=100 * (other - mine) / other, measured=True)


def _reason(chosen: Ranked, tied: Sequence[Ranked], rivals: Sequence[Ranked]) -> str:
    words = chosen.reason
    others = [one for one in tied if one is not chosen and one.measured_step_ms is not None]
    if others:
        # With its figures, so that it can be seen which are known well.
        told = " and ".join(f"{one.strategy} ({one.step_words()} ms)" for one in others)
        words = f"{told} cannot be told from it ({chosen.step_words()} ms) in {chosen.rounds} rounds. {words}"
    if rivals and rivals[0].slower_percent is not None:
        words += f". Next is {rivals[0].strategy}, {rivals[0].slower_percent:.1f} % slower"
    return words


def _lossy_note(best: Candidate) -> tuple[str, ...]:
    if not best.lossy:
        return ()
    how = f"{best.label} rounds gradients to {best.compress} on the way"
    return (f"{how}: check that the loss falls as before, or ask again with --exact",)
