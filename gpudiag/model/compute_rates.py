"""Look up published peak rates of GPUs, and define how rates of kernel classes are reported.

Rates are NVIDIA's published dense rates in TFLOP/s: of CUDA cores in fp32, of matrix units with tf32 inputs, and of
matrix units with bf16 or fp16 inputs (P100: CUDA cores in fp16). The rate is 0 if a GPU has no such units. Rates
published "with sparsity" are halved. Memory rates are in GB/s.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from gpudiag.model.quantities import Milliseconds, Percentage, Rate

#: (Words in the driver's name of a GPU, (TFLOP/s in fp32, tf32, fp16), source), longer names first. GPUs with tf32
#: units reach the fp16 rate in bf16 as well.
_TFLOPS: tuple[tuple[str, tuple[float, float, float], str], ...] = (
    ("GB200", (80, 1250, 2500), "GB200 NVL72 datasheet (2024), half of a superchip"),
    ("B200", (75, 1100, 2250), "Blackwell architecture technical brief (2024), HGX B200"),
    ("GH200", (67, 494, 989), "GH200 datasheet (2023)"),
    ("H200 NVL", (60, 417, 835), "H200 datasheet (2024)"),
    ("H200", (67, 494, 989), "H200 datasheet (2024), SXM"),
    ("H100 PCIe", (51, 378, 756), "H100 datasheet (2022), PCIe"),
    ("H100 NVL", (60, 417, 835), "H100 datasheet (2024), NVL"),
    ("H100", (67, 494, 989), "H100 datasheet (2022), SXM"),
    ("H20", (44, 74, 148), "H20 product brief (2023)"),
    ("A100", (19.5, 156, 312), "A100 datasheet (2021)"),
    ("A30", (10.3, 82, 165), "A30 datasheet (2021)"),
    ("A10", (31.2, 62.5, 125), "A10 datasheet (2021)"),
    ("A40", (37.4, 74.8, 149.7), "A40 datasheet (2021)"),
    ("L40S", (91.6, 183, 362), "L40S datasheet (2023)"),
    ("L40", (90.5, 90.5, 181), "L40 datasheet (2022)"),
    ("L4", (30.3, 60, 121), "L4 datasheet (2023)"),
    ("V100S", (16.4, 0, 130), "V100 datasheet (2020), V100S PCIe"),
    ("V100-PCIE", (14, 0, 112), "V100 datasheet (2020), PCIe"),
    ("V100", (15.7, 0, 125), "V100 datasheet (2020), SXM2"),
    ("P100-PCIE", (9.3, 0, 18.7), "P100 datasheet (2016), PCIe"),
    ("P100", (10.6, 0, 21.2), "P100 datasheet (2016), SXM2"),
    ("P40", (11.8, 0, 0), "P40 datasheet (2016)"),
    ("T4", (8.1, 0, 65), "T4 datasheet (2018)"),
    ("M60", (4.8, 0, 0), "M60 datasheet (2015), one GPU of two"),
    ("K80", (4.1, 0, 0), "K80 board specification (2015), one GPU of two"),
    ("RTX 4090", (82.6, 82.6, 165.2), "Ada GPU architecture (2022), appendix A, sums in fp32"),
    ("RTX 3090", (35.6, 35.6, 71), "GA102 GPU architecture (2020), appendix A, sums in fp32"),
    ("RTX 2080 Ti", (13.4, 0, 53.8), "Turing GPU architecture (2018), appendix A, sums in fp32"),
    ("GTX 1080 Ti", (11.3, 0, 0), "GeForce 10 specifications"),
    ("GTX 1080", (8.9, 0, 0), "GeForce 10 specifications"),
    ("GTX 1070", (6.5, 0, 0), "GeForce 10 specifications"),
    ("GTX 980 Ti", (5.6, 0, 0), "GeForce 900 specifications"),
)
#: (Pattern of the driver's name, GB/s of the memory) from the sources above, specific patterns first. A board that is
#: sold with different memories is in the table only if its name states the memory. T4 is missing, because its datasheet
#: and its brief differ.
_MEMORY_GB_PER_S: tuple[tuple[str, float], ...] = (
    ("GB200", 8000),
    ("B200", 8000),
    ("GH200 480GB", 4000),
    ("H200", 4800),
    ("H100 PCIe", 2000),
    ("H100 80GB HBM3", 3350),
    ("H20(?!-)", 4000),
    ("A100 80GB PCIe", 1935),
    ("A100-SXM4-80GB", 2039),
    ("A100-(SXM4|PCIE)-40GB", 1555),
    ("A30", 933),
    ("A10", 600),
    ("A40", 696),
    ("L40S?", 864),
    ("L4", 300),
    ("V100S", 1134),
    ("V100", 900),
    ("P100-SXM2", 732),
    ("RTX 4090", 1008),
    ("RTX 3090", 936),
    ("RTX 2080 Ti", 616),
    ("GTX 1080 Ti", 484),
    ("GTX 1080", 320),
    ("GTX 1070", 256),
)
#: Names of the types of inputs, as in `OperatorWork.precision`.
PRECISIONS = ("fp16", "bf16", "fp32")
#: Words in a driver's name that indicate a partition of a GPU, or a model that is not in the table.
_ANOTHER = re.compile(r"\b(ti|d|super|laptop|max-q|mig|grid|vgpu)\b", re.IGNORECASE)


def peak_tflops(name: str, precision: str) -> tuple[float, str] | None:
    """Return (a GPU's dense peak in TFLOP/s, its source); None if no peak is published for this precision.

    The peak of a partition of a GPU, and of a variant that is not in the table, is None too. If the GPU has no tf32
    units, the fp32 rate is returned for tf32.

    >>> peak_tflops("NVIDIA H100 80GB HBM3", "bf16")
    (989, 'NVIDIA H100 datasheet (2022), SXM')
    >>> peak_tflops("Tesla V100-SXM2-32GB", "tf32"), peak_tflops("Tesla V100-SXM2-32GB", "bf16")
    ((15.7, 'NVIDIA V100 datasheet (2020), SXM2'), None)
    """
    model, (fp32, tf32, half), source = published_rates(name)
    peaks = {"fp32": fp32, "tf32": tf32 or fp32, "fp16": half, "bf16": half if tf32 else 0}
    peak = peaks.get(precision, 0)
    # Words beside the model, such as `MIG`, belong to a partition or another model.
    return None if not peak or _ANOTHER.search(name.lower().replace(model.lower(), "")) else (peak, f"NVIDIA {source}")


def peak_memory_gb_per_s(name: str) -> tuple[float, str] | None:
    """Return (peak rate of a GPU's memory in GB/s, its source); None if the rate is unknown.

    >>> peak_memory_gb_per_s("NVIDIA H100 80GB HBM3"), peak_memory_gb_per_s("NVIDIA A100-SXM4-40GB MIG 1g.5gb")
    ((3350, 'NVIDIA H100 datasheet (2022), SXM'), None)
    """
    model, _, source = published_rates(name)
    for pattern, peak in _MEMORY_GB_PER_S if model else ():
        if (match := re.search(rf"\b({pattern})\b", name, re.IGNORECASE)) is not None:
            return None if _ANOTHER.search(name.lower().replace(match[0].lower(), "")) else (peak, f"NVIDIA {source}")
    return None


def published_rates(name: str) -> tuple[str, tuple[float, float, float], str]:
    """Return (model, TFLOP/s in (fp32, tf32, fp16), source) of a GPU with this name; zeros if the GPU is unknown."""
    for entry in _TFLOPS:
        if re.search(rf"\b{entry[0]}\b", name, re.IGNORECASE):
            return entry
    return ("", (0, 0, 0), "")


#: Limit of a class of kernels: matrix units, other arithmetic units, memory bandwidth, or launch time.
Bound = Literal["tensor-core", "simt", "memory", "launch"]


class ComputeClass(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels of one class: their time and number per step, averaged over devices.

    Concurrent kernels share their time equally, so the times of all classes sum to `compute` in `analysis.BUCKETS`.
    Classes below 1 % are part of class `other`. `bound` is None if unknown.

    Attributes:
        tflops_per_s: rate that the kernels of a matrix class reached, from recorded shapes; None if unknown.
        gb_per_s: bytes of inputs and outputs, from recorded shapes, divided by the kernels' time; None if unknown.
        known_percent: share of the class's time in operators of known FLOPs (matrix classes) or known bytes (others).
        peak_percent: reached share of the device's peak FLOP/s (matrix classes) or memory bandwidth (others).
        peak_source: publication of the peak.
    """

    kernel_class: str = msgspec.field(name="class")
    ms_per_step: Milliseconds
    kernels: Rate
    bound: Bound | None = None
    tflops_per_s: Rate | None = None
    gb_per_s: Rate | None = None
    known_percent: Percentage | None = None
    peak_percent: Rate | None = None
    peak_source: str = ""
