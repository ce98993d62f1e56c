"""Choose a strategy by predictions, or by measurements in rounds, in which the strategies train by turns."""

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

#: Two measured strategies are a tie if they differ by less than this share, because repeated runs differ by as much.
TIE_MEASURED = 0.005
#: Two predictions are a tie if they differ by at most this share, because predictions are not more accurate.
TIE_PREDICTED = 0.02
#: If an interval is wider than this percentage of the step, a note reports that measurements scattered.
_SCATTERED = 10.0
#: A mean is steady enough to be ranked if the half-width of its interval is at most this share of the mean.
_STEADY = 0.10


class _Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of one benchmark, by candidate label.

    Attributes:
        turns: the candidates that were measured in two rounds or more, including `independent`.
        failed: reasons why candidates failed, or had no turns.
        steady: candidates whose mean is steady, including `independent`.
        fastest: the fastest strategy that communicates, among steady strategies if there are any.
    """

    turns: dict[str, Turns]
    failed: dict[str, str]
    steady: set[str]
    fastest: str

    @property
    def racing(self) -> dict[str, Turns]:
        """Turns of the strategies that communicate."""
        return _without_independent(self.turns)


def judge(benchmark: StrategyBenchmark, *, seconds: float | None = None) -> Recommendation:
    """Choose by measurement, or by prediction alone if no strategy was measured. `seconds`: duration of the command.

    Candidates are compared within each round, so that a drift of the machine cancels out. A candidate is tied with the
    fastest if the interval of their difference contains 0, or if it is slower by less than 0.5 %. A candidate with too
    few rounds to compare is not ranked. If a candidate that may be as fast is not ranked, the result is a tie.
    """
    turns = {turn.candidate.label: turn for turn in benchmark.turns if len(turn.round_ms) > 1 and turn.cannot is None}
    failed = {turn.candidate.label: turn.cannot for turn in benchmark.turns if turn.cannot is not None}
    racing = _without_independent(turns)
    if not racing:
        return from_predictions(
            benchmark.predictions,
            workload=benchmark.workload,
            devices=benchmark.devices,
            batch_size=benchmark.batch_size,
            p2p=benchmark.p2p,
            peer_access=benchmark.peer_access,
            device_name=benchmark.device_name,
            notes=("no strategy could be measured, so the choice is based on predictions",) if benchmark.turns else (),
            failed=failed,
        )
    steady = _steady(turns)
    fastest = min(steady & set(racing) or racing, key=lambda label: statistics.fmean(racing[label].round_ms))
    measured = _Measured(turns=turns, failed=failed, steady=steady, fastest=fastest)
    return _measured_verdict(benchmark, measured, seconds=seconds)


def _measured_verdict(benchmark: StrategyBenchmark, measured: _Measured, *, seconds: float | None) -> Recommendation:
    """Return the recommendation that follows from the measurements; `seconds` is the duration of the command."""
    racing = measured.racing
    ranking = _measured_ranking(benchmark, measured)
    tied = _tied(ranking, measured)  # may have strategies that were not measured
    candidates = {prediction.candidate.label: prediction.candidate for prediction in benchmark.predictions}
    best, why_preferred = _preferred([candidates[label] for label in tied if label in racing], measured)
    chosen = next(row for row in ranking if row.strategy == best.label)
    slower = [row for row in ranking if row.strategy in racing and row.strategy not in tied]
    return Recommendation(
        verdict="tie" if len(tied) > 1 else "winner",
        recommended=best.label,
        tied=tuple(tied) if len(tied) > 1 else (),
        reason=why_preferred + _measured_reason(chosen, [row for row in ranking if row.strategy in tied], slower),
        basis="measured",
        workload=benchmark.workload,
        device_name=benchmark.device_name,
        devices=benchmark.devices,
        batch_size_per_device=benchmark.batch_size,
        peer_access=benchmark.peer_access,
        gain=None if chosen.unranked else _measured_gain(slower, racing, best),
        ceiling=_measured_ceiling(benchmark, measured, chosen),
        flags=flags(best, p2p=benchmark.p2p),
        code=code_change(best),
        ranking=tuple(ranking),
        notes=(*_measurement_notes(benchmark, ranking, racing), *_rounding_note(best)),
        assumed=_assumed(benchmark.predictions),
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
    failed: Mapping[str, str] | None = None,
) -> Recommendation:
    """Choose by prediction alone. Candidates within 2 % of the best are tied with it.

    Args:
        predictions: the predictions of all candidates.
        workload, devices, batch_size, peer_access, device_name: fields of the result.
        p2p: False if peer access is switched off, which adds `--no-p2p` to the flags.
        notes: further notes of the result.
        failed: reasons why candidates could not be measured, by label.
    """
    failed = failed or {}
    possible = [
        prediction
        for prediction in predictions
        if prediction.cannot is None and prediction.candidate.label not in {INDEPENDENT, *failed}
    ]
    if not possible:
        raise HardwareMissingError(
            f"no strategy can run on {devices} device{'s' if devices > 1 else ''} here",
            "See the reasons with --json, or choose another number with --devices.",
        )
    least_ms = min(map(_predicted_ms, possible))
    tied = [prediction for prediction in possible if _predicted_ms(prediction) <= least_ms * (1 + TIE_PREDICTED)]
    best = min(tied, key=lambda prediction: preference(prediction.candidate))
    ranking = [
        _row(prediction, devices, batch_size, prediction.cannot or failed.get(prediction.candidate.label))
        for prediction in predictions
    ]
    return Recommendation(
        verdict="tie" if len(tied) > 1 else "winner",
        recommended=best.candidate.label,
        tied=tuple(prediction.candidate.label for prediction in tied) if len(tied) > 1 else (),
        reason=_predicted_reason(best, tied),
        basis="predicted",
        workload=workload,
        device_name=device_name,
        devices=devices,
        batch_size_per_device=batch_size,
        peer_access=peer_access,
        gain=_predicted_gain(best, possible, tied),
        ceiling=_predicted_ceiling(predictions, best, devices, batch_size),
        flags=flags(best.candidate, p2p=p2p),
        code=code_change(best.candidate),
        ranking=tuple(sorted(ranking, key=_ranking_key)),
        notes=(*notes, *_rounding_note(best.candidate)),
        assumed=_assumed(possible),
    )


def _without_independent(turns: Mapping[str, Turns]) -> dict[str, Turns]:
    return {label: turn for label, turn in turns.items() if label != INDEPENDENT}


def _steady(turns: Mapping[str, Turns]) -> set[str]:
    """Return the candidates whose mean, or whose ratio to another candidate in the same rounds, is steady."""

    def uncertainty(turn: Turns) -> float:
        others = [other.round_ms for other in turns.values() if other is not turn]
        ratios = [[a / b for a, b in zip(turn.round_ms, other, strict=False)] for other in others]
        series = [turn.round_ms, *(ratio for ratio in ratios if len(ratio) >= RANKED_ROUNDS)]
        return min(mean_of(values).relative_half_width for values in series)

    return {
        label for label, turn in turns.items() if len(turn.round_ms) >= RANKED_ROUNDS and uncertainty(turn) <= _STEADY
    }


def _measured_ranking(benchmark: StrategyBenchmark, measured: _Measured) -> list[Ranked]:
    """Rank measured candidates first, then predicted candidates, then candidates that cannot run."""
    rows = []
    for prediction in benchmark.predictions:
        label = prediction.candidate.label
        row = _row(prediction, benchmark.devices, benchmark.batch_size, prediction.cannot or measured.failed.get(label))
        rows.append(_with_measurement(row, measured, benchmark) if label in measured.turns else row)
    return sorted(rows, key=_ranking_key)


def _row(prediction: Prediction, devices: int, batch_size: int | None, cannot: str | None) -> Ranked:
    """Return the ranking's row of a prediction; `cannot` is the reason why the candidate cannot run or failed."""
    return Ranked(
        strategy=prediction.candidate.label,
        predicted_step_ms=prediction.step_ms,
        exposed_ms=None if prediction.cannot else prediction.exposed_ms,
        exchange_ms=None if prediction.cannot else prediction.exchange_ms,
        samples_per_s=_samples_per_s(prediction.step_ms, devices, batch_size),
        reason=prediction.reason,
        lossy=prediction.candidate.lossy,
        cannot=cannot,
    )


def _with_measurement(row: Ranked, measured: _Measured, benchmark: StrategyBenchmark) -> Ranked:
    """Add the measured step time, and its excess over the step time of the fastest candidate in percent."""
    round_ms = measured.turns[row.strategy].round_ms
    step = mean_of(round_ms)
    slower_percent, interval = 0.0, (0.0, 0.0)
    if row.strategy != measured.fastest:
        # Turns of the same round are compared, because they are near in time. A candidate may have fewer rounds.
        fastest = measured.turns[measured.fastest].round_ms
        ratio = mean_of([ms / fastest_ms - 1 for ms, fastest_ms in zip(round_ms, fastest, strict=False)])
        slower_percent, interval = 100 * ratio.value, (100 * ratio.low, 100 * ratio.high)
    steady = row.strategy in {INDEPENDENT, *measured.steady}  # `independent` does not compete
    return msgspec.structs.replace(
        row,
        measured_step_ms=step.value,
        ci95=(step.low, step.high),
        rounds=len(round_ms),
        samples_per_s=_samples_per_s(step.value, benchmark.devices, benchmark.batch_size),
        slower_percent=slower_percent,
        slower_ci95=interval,  # above 0, the candidate is certainly slower, and is ranked even if not steady
        unranked=None if steady or interval[0] > 0.0 else "its turns were too few or scattered too much",
    )


def _ranking_key(row: Ranked) -> tuple[int, float, str]:
    """Return the key that sorts the ranking: measured, predicted, impossible candidates; each by step time."""
    if row.cannot is not None:
        return 2, 0.0, row.strategy
    if row.measured_step_ms is not None and row.unranked is None:
        return 0, row.measured_step_ms, row.strategy
    predicted_ms = row.predicted_step_ms if row.predicted_step_ms is not None else row.exposed_ms
    return 1, predicted_ms or 0.0, row.strategy


def _is_tied(row: Ranked) -> bool:
    """Return whether a measured row may be as fast as the fastest, or is slower by less than `TIE_MEASURED`."""
    if row.slower_percent is None or row.slower_ci95 is None:
        return False
    return row.slower_ci95[0] <= 0.0 or row.slower_percent < 100 * TIE_MEASURED


def _tied(ranking: Sequence[Ranked], measured: _Measured) -> list[str]:
    """Return the fastest strategy, the strategies tied with it, and the strategies that may be as fast."""
    racing = measured.racing
    tied = [row.strategy for row in ranking if row.strategy in racing and row.unranked is None and _is_tied(row)]
    tied = tied or [measured.fastest]
    return tied + [label for label in _undecided(ranking, measured.fastest) if label not in tied]


def _undecided(ranking: Sequence[Ranked], fastest: str) -> list[str]:
    """Return the unranked strategies, and those left out for lack of time that are predicted near `fastest`."""
    fastest_ms = next(row.predicted_step_ms for row in ranking if row.strategy == fastest)

    def may_be_fastest(row: Ranked) -> bool:
        if row.unranked is not None:
            return True
        if row.cannot != NO_TIME or fastest_ms is None or row.predicted_step_ms is None:
            return False
        return row.predicted_step_ms <= fastest_ms * (1 + MAY_ERR)

    return [row.strategy for row in ranking if row.strategy != INDEPENDENT and may_be_fastest(row)]


def _preferred(tied: Sequence[Candidate], measured: _Measured) -> tuple[Candidate, str]:
    """Choose the tied candidate with the lowest preference rank, and return it with the reason.

    A strategy of `usual_strategies` may be chosen even if its turns scattered; other strategies only if they are
    steady. If no candidate is eligible, choose the fastest.
    """
    eligible = [
        candidate for candidate in tied if candidate.label in measured.steady or candidate.label in usual_strategies()
    ]
    if not eligible:
        fastest = next(candidate for candidate in tied if candidate.label == measured.fastest)
        return fastest, f"{fastest.label} was the fastest measured. " if tied[1:] else ""
    best = min(eligible, key=preference)
    return best, f"{best.label} is the simplest; " if tied[1:] else ""


def _measured_reason(chosen: Ranked, tied: Sequence[Ranked], slower: Sequence[Ranked]) -> str:
    """Return sentences that compare the chosen strategy with the tied strategies and the next slower strategy."""
    reason = chosen.reason
    others = [row for row in tied if row is not chosen and row.measured_step_ms is not None]
    if others:
        steps = " and ".join(f"{row.strategy} ({row.step_words()} ms)" for row in others)
        equal = f"{steps} cannot be distinguished from it ({chosen.step_words()} ms)"
        reason = f"{equal} in {chosen.rounds} rounds. {reason}"
    following = next((row for row in slower if row.unranked is None), None)
    if following is not None and following.slower_percent is not None:
        reason += f". Next is {following.strategy}, {following.slower_percent:.1f} % slower"
    return reason


def _predicted_reason(best: Prediction, tied: Sequence[Prediction]) -> str:
    if len(tied) == 1:
        return best.reason
    others = ", ".join(prediction.candidate.label for prediction in tied if prediction is not best)
    return (
        f"{others} would take as long within {TIE_PREDICTED:.0%}; {best.candidate.label} is the simplest; {best.reason}"
    )


def _measured_gain(slower: Sequence[Ranked], racing: Mapping[str, Turns], best: Candidate) -> Gain | None:
    """Return the savings compared with the first slower strategy of `usual_strategies`, or else of the ranking."""
    labels = [row.strategy for row in slower]
    if not labels:
        return None
    over = next((label for label in usual_strategies() if label in labels), labels[0])
    best_ms, other_ms = (statistics.fmean(racing[label].round_ms) for label in (best.label, over))
    if other_ms <= best_ms:  # a preferred candidate may be slower than the fastest candidate, if they are tied
        return None
    return Gain(over=over, ms=other_ms - best_ms, percent=100 * (other_ms - best_ms) / other_ms, measured=True)


def _predicted_gain(best: Prediction, possible: Sequence[Prediction], tied: Sequence[Prediction]) -> Gain | None:
    """Return the savings compared with the next slower prediction, if any. `possible` is sorted by predicted cost."""
    slower = next((prediction for prediction in possible if prediction not in tied), None)
    if slower is None or best.step_ms is None or slower.step_ms is None:
        return None
    saved_ms = slower.step_ms - best.step_ms
    return Gain(over=slower.candidate.label, ms=saved_ms, percent=100 * saved_ms / slower.step_ms, measured=False)


def _measured_ceiling(benchmark: StrategyBenchmark, measured: _Measured, chosen: Ranked) -> StepCeiling | None:
    """Return the step time without communication, and if both step times are steady, what percentage it is shorter."""
    independent = measured.turns.get(INDEPENDENT)
    if independent is None or chosen.measured_step_ms is None:
        return None
    step_ms = statistics.fmean(independent.round_ms)
    steady = {INDEPENDENT, chosen.strategy} <= measured.steady
    return StepCeiling(
        step_ms=step_ms,
        samples_per_s=_samples_per_s(step_ms, benchmark.devices, benchmark.batch_size),
        percent_left=100 * (1 - step_ms / chosen.measured_step_ms) if steady else None,
        measured=True,
    )


def _predicted_ceiling(
    predictions: Sequence[Prediction], best: Prediction, devices: int, batch_size: int | None
) -> StepCeiling | None:
    """Return the predicted step time without communication, and what percentage it is shorter; None if unknown."""
    independent = next((known for known in predictions if known.candidate.label == INDEPENDENT), None)
    if independent is None or independent.step_ms is None:
        return None
    return StepCeiling(
        step_ms=independent.step_ms,
        samples_per_s=_samples_per_s(independent.step_ms, devices, batch_size),
        percent_left=None if not best.step_ms else 100 * (1 - independent.step_ms / best.step_ms),
        measured=False,
    )


def _measurement_notes(benchmark: StrategyBenchmark, ranking: Sequence[Ranked], racing: Collection[str]) -> list[str]:
    """Return notes on strategies that were not measured, or not long enough, and on the scatter of turns."""
    notes = []
    left_out = [turn.candidate.label for turn in benchmark.turns if turn.cannot == NO_TIME]
    if left_out:
        notes.append(
            f"the budget was too small for {len(racing) + len(left_out)} strategies: measured "
            f"{', '.join(racing)}; left out {', '.join(left_out)}; give a larger --budget"
        )
    unranked = [row.strategy for row in ranking if row.unranked is not None]
    if unranked:
        notes.append(
            f"not measured long enough to be ranked, and may be as fast: {', '.join(unranked)}; give a larger --budget"
        )
    intervals = [row.slower_ci95 for row in ranking if row.rounds >= RANKED_ROUNDS and row.slower_ci95 is not None]
    widest = max((high - low for low, high in intervals), default=0.0)
    if widest > _SCATTERED:
        notes.append(f"turns scattered by up to {widest / 2:.0f} %: measure again when the machine is otherwise idle")
    return notes


def _rounding_note(best: Candidate) -> tuple[str, ...]:
    if not best.lossy:
        return ()
    rounding = f"{best.label} rounds gradients to {best.compress}"
    return (f"{rounding}: check that the loss decreases as it did, or run again with --exact",)


def _assumed(predictions: Sequence[Prediction]) -> dict[str, str]:
    return {name: value for prediction in predictions for name, value in prediction.assumed.items()}


def _predicted_ms(prediction: Prediction) -> float:
    return prediction.exposed_ms if prediction.step_ms is None else prediction.step_ms


def _samples_per_s(step_ms: float | None, devices: int, batch_size: int | None) -> float | None:
    return None if not step_ms or not batch_size else 1e3 * devices * batch_size / step_ms
