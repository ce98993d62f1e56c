"""Forecast weak scaling on 1, 2 … N devices."""

from __future__ import annotations

from gpudiag.model.benchmarks.prediction import Candidate, Gradients
from gpudiag.model.benchmarks.recommendation import Expected
from gpudiag.model.facts import Facts
from gpudiag.prediction.curves import Curve
from gpudiag.training.strategies.predict import MAY_ERR, predict


def expected_scaling(
    facts: Facts,
    model: Gradients,
    candidate: Candidate,
    devices: int,
    *,
    p2p: bool = True,
    curves: dict[str, Curve] | None = None,
    measured_ms: float | None = None,
) -> tuple[Expected, ...]:
    """Forecast step time, samples per second, speedup and efficiency of a candidate on 1 to `devices` devices.

    The batch per device is constant, so the speedup is devices x step on one / step on many, and the efficiency is the
    speedup per device. The result is empty if the compute is unknown, or if the prediction for all devices differs from
    their measurement (`measured_ms`), because then it is no basis for fewer devices.
    """
    if model.compute is None:
        return ()
    alone_ms = model.compute.step_ms
    forecasts = []
    for count in range(1, devices + 1):
        step_ms = alone_ms
        if count > 1:
            step_ms = predict(facts, model, [candidate], count, p2p=p2p, curves=curves)[0].step_ms or alone_ms
        if count == devices and measured_ms is not None:
            if abs(step_ms / measured_ms - 1) > MAY_ERR:
                return ()
            step_ms = max(alone_ms, measured_ms)
        forecasts.append(
            Expected(
                strategy=candidate.label,
                devices=count,
                step_ms=step_ms,
                samples_per_s=None if not model.batch_size else 1e3 * count * model.batch_size / step_ms,
                speedup=count * alone_ms / step_ms,
                efficiency=alone_ms / step_ms,
            )
        )
    return tuple(forecasts)
