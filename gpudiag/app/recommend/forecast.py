"""Forecast a strategy on 1, 2 … N devices, each with the same batch."""

from __future__ import annotations

from gpudiag.model.benchmarks.prediction import Candidate, Gradients
from gpudiag.model.benchmarks.recommendation import ExpectedStep
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
) -> tuple[ExpectedStep, ...]:
    """Step time, samples per second, speedup and efficiency of a candidate on 1 to `devices` devices.

    The batch per device is constant (weak scaling), so the speedup is devices x step on one / step on many, and the
    efficiency is the speedup divided by the number of devices. The result is empty if the compute is unknown, or if the
    prediction for all devices differs from the measured step (`measured_ms`), because it then says nothing about fewer
    devices.
    """
    if model.compute is None:
        return ()
    alone = model.compute.step_ms
    found = []
    for count in range(1, devices + 1):
        step = alone
        if count > 1:
            step = predict(facts, model, [candidate], count, p2p=p2p, curves=curves)[0].step_ms or alone
        if count == devices and measured_ms is not None:
            if abs(step / measured_ms - 1) > MAY_ERR:
                return ()
            step = max(alone, measured_ms)
        found.append(
            ExpectedStep(
                strategy=candidate.label,
                devices=count,
                step_ms=step,
                samples_per_s=None if not model.batch_size else 1e3 * count * model.batch_size / step,
                speedup=count * alone / step,
                efficiency=alone / step,
            )
        )
    return tuple(found)
