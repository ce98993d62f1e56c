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
    """Return the expected step of a candidate on 1 to `devices` devices, each with the same batch (weak scaling).

    speedup on n devices = n * (step time on 1 device) / (step time on n devices)
    efficiency on n devices = speedup / n

    Args:
        facts: the machine.
        model: gradients and compute of a step.
        candidate: the strategy.
        devices: the largest number of devices.
        p2p: GPUs may use peer access.
        curves: measured durations of all-reduces by transport; None to use the measurements in `facts`.
        measured_ms: measured step time on `devices` devices, which replaces the predicted step time; None if unknown.

    Returns:
        One step per number of devices. The result is empty if the compute is unknown, or if the prediction differs too
        much from the measured step, because then the prediction for fewer devices is unreliable too.
    """
    if model.compute is None:
        return ()
    one_device_ms = model.compute.step_ms
    steps = []
    for count in range(1, devices + 1):
        step_ms = one_device_ms
        if count > 1:  # if the cost on `count` devices is unknown, the step of one device is used
            step_ms = predict(facts, model, [candidate], count, p2p=p2p, curves=curves)[0].step_ms or one_device_ms
        if count == devices and measured_ms is not None:
            if abs(step_ms / measured_ms - 1) > MAY_ERR:
                return ()
            step_ms = max(one_device_ms, measured_ms)  # so that no efficiency exceeds 1
        steps.append(
            ExpectedStep(
                strategy=candidate.label,
                devices=count,
                step_ms=step_ms,
                samples_per_s=None if not model.batch_size else 1e3 * count * model.batch_size / step_ms,
                speedup=count * one_device_ms / step_ms,
                efficiency=one_device_ms / step_ms,
            )
        )
    return tuple(steps)
