"""How long a step computes, where nobody measured it: its floating-point work over what such a GPU gets done.

Dense rates from NVIDIA's data sheets, in TFLOP/s: fp32 on the ordinary units, then what matrix units do with inputs of
tf32 and of bf16 or fp16 (0 where there are none). Training reaches a part of that: 0.3 to 0.6 for large convolutions
and matrix products, less for small layers. An estimate of this kind may be off by a factor of two, and says
so; by three and more, too long, in fp32 where convolutions take fewer multiplications than are counted (Winograd, FFT:
AlexNet on a GTX 1070 takes 341 to 372 ms, not 887).
"""

from __future__ import annotations

from gpudiag.model.benchmarks.prediction import Compute
from gpudiag.model.facts import Facts

#: By a part of the name that NVML gives; longer parts first where one holds another.
_TFLOPS: tuple[tuple[str, tuple[float, float, float]], ...] = (
    ("B200", (75, 1100, 2250)),
    ("H200", (67, 494, 989)),
    ("H100 PCIe", (51, 378, 756)),
    ("H100", (67, 494, 989)),
    ("A100", (19.5, 156, 312)),
    ("L40", (91, 91, 181)),
    ("A40", (37, 75, 150)),
    ("V100", (15.7, 0, 125)),
    ("P100", (10.6, 0, 21)),
    ("P40", (11.8, 0, 0)),
    ("T4", (8.1, 0, 65)),
    ("M60", (4.8, 0, 0)),
    ("K80", (4.1, 0, 0)),
    ("RTX 4090", (83, 83, 165)),
    ("RTX 3090", (36, 36, 71)),
    ("RTX 2080 Ti", (13.4, 0, 54)),
    ("GTX 1080 Ti", (11.3, 0, 0)),
    ("GTX 1080", (8.9, 0, 0)),
    ("GTX 1070", (6.5, 0, 0)),
    ("GTX 980 Ti", (5.6, 0, 0)),
)
#: TFLOP/s of fp32 that a core gets done with vectors of 256 bits.
_PER_CORE = 0.03
_REACHED = 0.4
#: Share of a step that is the update and everything else that is no floating-point work of the layers.
_REST = 0.08
#: µs of host work per trained tensor and step: the kernels of its layer and its update have to be launched.
_LAUNCH_US = 40.0


def estimated_compute(
    facts: Facts, flops: float, tensors: int, *, precision: str | None = None, processes: int = 1
) -> Compute | None:
    """A step of `flops` floating-point operations on one device of this machine; None where its GPU is not known.

    Args:
        facts: the machine.
        flops: of forward and backward of a whole batch.
        tensors: trained parameters.
        precision: as on the command line; None for tf32 on GPUs.
        processes: that share the CPUs, where there is no GPU.
    """
    gpus = [gpu for gpu in facts.gpus if gpu.visible]
    if gpus:
        rates = [_rate(gpu.name, precision) for gpu in gpus]
        known = [rate for rate in rates if rate is not None]
        if len(known) < len(rates):
            return None
        rate, what = min(known), f"{gpus[0].name}'s data sheet"
    else:
        cores = facts.host.usable_cpus or facts.host.cores or 1
        rate, what = _PER_CORE * max(1, cores // processes), f"{cores} CPUs"
    work_ms = max(flops / (rate * 1e9 * _REACHED), tensors * _LAUNCH_US / 1e3 if gpus else 0.0)
    step = work_ms / (1 - _REST)
    return Compute(
        forward_ms=work_ms / 3,
        backward_ms=work_ms * 2 / 3,
        update_ms=step * _REST,
        step_ms=step,
        source=f"estimated from {flops / 1e9:.0f} GFLOP at {_REACHED:.0%} of {what}, and may be off by a factor of "
        "two, or of three where convolutions take fewer multiplications than are counted",
    )


def _rate(name: str, precision: str | None) -> float | None:
    for part, (fp32, tf32, half) in _TFLOPS:
        if part.lower() in name.lower():
            if precision == "fp32":
                return fp32
            if precision in {"bf16", "fp16"}:
                return half or fp32
            return tf32 or fp32
    return None
