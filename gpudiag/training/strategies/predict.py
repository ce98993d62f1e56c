"""Predict each candidate's step time from the machine's facts and a model's gradients; choose candidates to measure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpudiag.model.benchmarks.prediction import Candidate, Gradients, Prediction
from gpudiag.model.facts import Facts
from gpudiag.prediction.curves import Curve
from gpudiag.prediction.situation import Situation
from gpudiag.training.strategies.registry import strategies, strategy_entry

#: Maximum relative error that is assumed for a predicted step time.
MAY_ERR = 0.2
#: Maximum number of finalists (candidates to measure) besides the preferred candidate.
MOST_FINALISTS = 6


def preference(candidate: Candidate) -> tuple[bool, int, int]:
    """Return a sort key: lossless candidates first, then by preference rank, then candidates with few options first."""
    rank = strategy_entry(candidate.strategy, candidate.framework).preference_rank
    return candidate.lossy, rank, len(candidate.options)


def predict(
    facts: Facts,
    model: Gradients,
    candidates: Iterable[Candidate],
    devices: int,
    *,
    p2p: bool = True,
    curves: dict[str, Curve] | None = None,
    cannot: dict[str, str] | None = None,
) -> tuple[Prediction, ...]:
    """Predict the cost of each candidate, and sort by exposed time, which compute does not hide. Candidates that cannot
    run here are last.

    Args:
        facts: measured properties of the machine.
        model: the gradients of the training. If `model.compute` is None, all communication counts as exposed.
        candidates: candidates to predict. A candidate of unknown cost is treated as one that cannot run.
        devices: number of devices that train.
        p2p: False if peer access is switched off.
        curves: measured all-reduces by transport, which take precedence over the facts.
        cannot: reasons why candidates cannot run, by the candidates' labels.
    """
    now = Situation(facts, model, devices, p2p=p2p, curves=curves)
    predictions = [_predict(now, candidate, (cannot or {}).get(candidate.label)) for candidate in candidates]

    def cheapest_first(prediction: Prediction) -> tuple[bool, float, str]:
        return prediction.cannot is not None, prediction.exposed_ms, prediction.candidate.label

    return tuple(sorted(predictions, key=cheapest_first))


def _predict(now: Situation, candidate: Candidate, cannot: str | None) -> Prediction:
    """Predict the cost of one candidate. `cannot` is the reason why the candidate cannot run, or None."""
    strategy = strategies(candidate.framework).get(candidate.strategy)
    now.paths.assumed.clear()  # `strategy.cost` adds properties of the machine that were not measured
    cost = None if cannot is not None or strategy is None else strategy.cost(now, candidate)
    if cost is None or strategy is None:
        why = cannot or "gpudiag has no model of its cost"
        return Prediction(candidate=candidate, devices=now.devices, cannot=why, reason=why)
    compute = now.model.compute
    exposed = cost.exposed_ms
    if compute is not None and now.on_gpu and strategy.launched_ahead:
        # A device can communicate while it waits for its host, but the host's work for communication remains exposed.
        exposed = max(cost.host_ms, exposed - compute.waiting_ms)
    return Prediction(
        candidate=candidate,
        devices=now.devices,
        step_ms=None if compute is None else compute.step_ms + exposed,
        exposed_ms=exposed,
        exchange_ms=cost.exchange_ms,
        reason=cost.reason,
        assumed=dict(now.paths.assumed),
    )


def finalists_of(predictions: Sequence[Prediction], least: int) -> list[Candidate]:
    """Choose the candidates to measure: the preferred candidate first, then the best by prediction.

    All candidates within the prediction error `MAY_ERR` of the best are chosen, up to `MOST_FINALISTS`. The preferred
    candidate is always measured, because another candidate is recommended only if it is faster.

    Args:
        predictions: predictions in the order in which `predict` returns them.
        least: minimum number of finalists, if enough candidates can run.
    """
    possible = [
        prediction
        for prediction in predictions
        if prediction.cannot is None
        and strategy_entry(prediction.candidate.strategy, prediction.candidate.framework).communicates
    ]
    if not possible:
        return []
    limit = (possible[0].step_ms or 0.0) * (1 + MAY_ERR)  # if step times are unknown, all candidates are near
    near = [prediction.candidate for prediction in possible if (prediction.step_ms or 0.0) <= limit]
    every = [prediction.candidate for prediction in possible]
    chosen = (near if len(near) > least else every[:least])[:MOST_FINALISTS]
    preferred = min(every, key=preference)
    return [preferred, *(candidate for candidate in chosen if candidate != preferred)]


def usual_strategies() -> tuple[str, ...]:
    """Return the names of the default strategies on GPUs and CPUs, with which a recommendation is compared."""
    return tuple(name for name, strategy in strategies().items() if strategy.default_on is not None)
