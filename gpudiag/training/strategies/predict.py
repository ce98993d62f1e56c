"""The step time of each candidate, from facts and a model, and which of them are worth measuring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpudiag.model.benchmarks.prediction import Candidate, Gradients, Prediction
from gpudiag.model.facts import Facts
from gpudiag.prediction.curves import Curve
from gpudiag.prediction.situation import Situation
from gpudiag.training.strategies.registry import strategies, strategy_entry

#: Predictions are wrong by as much now and then.
MAY_ERR = 0.2
MOST = 6


def plainness(candidate: Candidate) -> tuple[bool, int, int]:
    """Sorts tied candidates: lossless before lossy, known before special, few options before many."""
    return candidate.lossy, strategy_entry(candidate.strategy, candidate.framework).special, len(candidate.options)


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
    """What each candidate costs, the cheapest first; those that cannot run here last.

    Args:
        facts: the machine.
        model: what is trained; without `compute` only the exchange is predicted, and nothing is hidden.
        candidates: what to predict; a strategy whose cost nobody knows gets no figure.
        devices: how many train.
        p2p: False where peer access is switched off.
        curves: measured all-reduces by transport, which count before those in the facts.
        cannot: labels of candidates that cannot run, with the reason.
    """
    now = Situation(facts, model, devices, p2p=p2p, curves=curves)
    found = [_one(now, candidate, (cannot or {}).get(candidate.label)) for candidate in candidates]
    return tuple(sorted(found, key=lambda one: (one.cannot is not None, one.exposed_ms, one.candidate.label)))


def _one(now: Situation, candidate: Candidate, cannot: str | None) -> Prediction:
    strategy = strategies(candidate.framework).get(candidate.strategy)
    now.paths.assumed.clear()
    cost = None if cannot is not None or strategy is None else strategy.cost(now, candidate)
    if cost is None or strategy is None:
        why = cannot or "gpudiag has no model of its cost"
        return Prediction(candidate=candidate, devices=now.devices, cannot=why, reason=why)
    known = now.model.compute
    # A device that waits for its host has time for an exchange, unless it is the host's work that takes longer.
    exposed = cost.exposed_ms
    if known is not None and now.on_gpu and strategy.launched_ahead:
        exposed = max(cost.host_ms, exposed - known.waiting_ms)
    return Prediction(
        candidate=candidate,
        devices=now.devices,
        step_ms=None if known is None else known.step_ms + exposed,
        exposed_ms=exposed,
        exchange_ms=cost.exchange_ms,
        reason=cost.reason,
        assumed=dict(now.paths.assumed),
    )


def finalists_of(predictions: Sequence[Prediction], least: int) -> list[Candidate]:
    """The plainest, then the best by prediction and whoever is so near that the prediction may err.

    What is special has to be faster than what is plain, so that the plain one is measured whatever the time.

    Args:
        predictions: the cheapest first, as `predict` gives them.
        least: how many at least, where there are as many that can run.
    """
    possible = [
        one
        for one in predictions
        if one.cannot is None and strategy_entry(one.candidate.strategy, one.candidate.framework).communications
    ]
    if not possible:
        return []
    best = possible[0].step_ms or 0.0
    near = [one.candidate for one in possible if (one.step_ms or 0.0) <= best * (1 + MAY_ERR)]
    chosen = (near if len(near) > least else [one.candidate for one in possible[:least]])[:MOST]
    plainest = min((one.candidate for one in possible), key=plainness)
    return [plainest, *(candidate for candidate in chosen if candidate != plainest)]


def usual_strategies() -> tuple[str, ...]:
    """What people take by default, on GPUs and on CPUs: what is gained is said over these."""
    return tuple(name for name, strategy in strategies().items() if strategy.default_on is not None)
