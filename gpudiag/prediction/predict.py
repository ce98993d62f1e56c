"""The step time of each candidate, from facts and a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudiag.model.prediction import Candidate, Prediction
from gpudiag.prediction import all_reduce, servers
from gpudiag.prediction.all_reduce import Cost
from gpudiag.prediction.situation import Situation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpudiag.model.facts import Facts
    from gpudiag.model.prediction import Gradients
    from gpudiag.prediction.curves import Curve


def _independent(now: Situation, candidate: Candidate) -> Cost:
    del now, candidate
    return Cost(0.0, 0.0, "no exchange: the ceiling of every other strategy, and no training of one model")


_MODELS: dict[str, Callable[[Situation, Candidate], Cost]] = {
    "nccl": all_reduce.nccl,
    "gloo": all_reduce.gloo,
    "cpu-reduce": all_reduce.cpu_reduce,
    "ps-cpu": servers.ps_cpu,
    "ps-gpu": servers.ps_gpu,
    "data-parallel": servers.data_parallel,
    "fsdp": servers.fsdp,
    "independent": _independent,
}

#: Those whose exchange is launched ahead and waits for no host.
_ON_DEVICE = ("nccl", "cpu-reduce", "ps-gpu", "fsdp")

#: Strategies that this module knows to predict.
PREDICTED = tuple(_MODELS)


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
        candidates: what to predict; a strategy that is not in `PREDICTED` gets no figure.
        devices: how many train.
        p2p: False where peer access is switched off.
        curves: measured all-reduces by transport, which count before those in the facts.
        cannot: labels of candidates that cannot run, with the reason.
    """
    now = Situation(facts, model, devices, p2p=p2p, curves=curves)
    found = [_one(now, candidate, (cannot or {}).get(candidate.label)) for candidate in candidates]
    return tuple(sorted(found, key=lambda one: (one.cannot is not None, one.exposed_ms, one.candidate.label)))


def _one(now: Situation, candidate: Candidate, cannot: str | None) -> Prediction:
    if cannot is not None or candidate.strategy not in _MODELS:
        why = cannot or "gpudiag has no model of its cost"
        return Prediction(candidate=candidate, devices=now.devices, cannot=why, reason=why)
    now.paths.assumed.clear()
    cost = _MODELS[candidate.strategy](now, candidate)
    known = now.model.compute
    # A device that waits for its host has time for an exchange, unless it is the host's work that takes longer.
    exposed = cost.exposed_ms
    if known is not None and now.on_gpu and candidate.strategy in _ON_DEVICE:
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
