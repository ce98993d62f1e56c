"""Estimate the compute time of a step that was not measured, from its floating-point work and the GPU's peak rate.

Training reaches 0.3 to 0.6 of the peak with large convolutions and matrix products, and less with small layers. The
estimate may be wrong by a factor of two, as its field `source` states. In fp32 the estimate may be three times too
long, because Winograd and FFT convolutions need fewer multiplications than are counted. For AlexNet on a GTX 1070 the
estimate is 887 ms, and the measured time 341 to 372 ms.
"""

from __future__ import annotations

from gpudiag.model.benchmarks.prediction import Compute
from gpudiag.model.compute_rates import published_rates
from gpudiag.model.facts import Facts

#: fp32 TFLOP/s that a CPU core reaches with vectors of 256 bits.
_PER_CORE = 0.03
#: Share of the peak rate that training reaches.
_REACHED = 0.4
#: Share of the step time in which no layer computes, for example the update.
_REST = 0.08
#: µs of host work per trained tensor and step, to launch the kernels of its layer and its update.
_LAUNCH_US = 40.0


def estimated_compute(
    facts: Facts, flops: float, tensors: int, *, precision: str | None = None, processes: int = 1
) -> Compute | None:
    """Estimate the times of a step on one device of this machine; None if the rate of a visible GPU is unknown.

    Args:
        facts: the machine.
        flops: floating-point operations of forward and backward for a whole batch.
        tensors: number of trained parameter tensors.
        precision: precision as on the command line; None for tf32 on GPUs.
        processes: number of processes that share the CPUs, if there is no GPU.
    """
    gpus = [gpu for gpu in facts.gpus if gpu.visible]
    if gpus:
        # The slowest GPU determines the step.
        rates = [_rate(gpu.name, precision) for gpu in gpus]
        known = [rate for rate in rates if rate is not None]
        if len(known) < len(rates):
            return None
        rate, basis = min(known), f"{gpus[0].name}'s data sheet"
    else:
        cores = facts.host.usable_cpus or facts.host.cores or 1
        rate, basis = _PER_CORE * max(1, cores // processes), f"{cores} CPUs"
    # On GPUs, the host may launch the work more slowly than the device computes it.
    work_ms = max(flops / (rate * 1e9 * _REACHED), tensors * _LAUNCH_US / 1e3 if gpus else 0.0)
    step_ms = work_ms / (1 - _REST)
    return Compute(
        forward_ms=work_ms / 3,  # backward takes twice as long, as in `overlap.BACKWARD_SHARE`
        backward_ms=work_ms * 2 / 3,
        update_ms=step_ms * _REST,
        step_ms=step_ms,
        source=f"estimated from {flops / 1e9:.0f} GFLOP at {_REACHED:.0%} of {basis}, and may be off by a factor of "
        "two, or of three where convolutions take fewer multiplications than are counted",
    )


def _rate(name: str, precision: str | None) -> float | None:
    """Return the published peak rate of a GPU in TFLOP/s; None if it is unknown."""
    _, (fp32, tf32, half), _ = published_rates(name)
    peaks = {"fp32": fp32, "bf16": half or fp32, "fp16": half or fp32}
    return peaks.get(precision or "", tf32 or fp32) or None
