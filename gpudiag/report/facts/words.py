"""Format facts of a GPU for a table cell or a line. An unknown value is `—`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gpudiag.model.facts import Clock, Gpu, PcieLink
from gpudiag.model.sanitize import one_line
from gpudiag.report.figures import TIMES, UNKNOWN

_GIB = 1 << 30


def gib(size_bytes: int | None) -> str:
    """Return bytes in GiB, as nvidia-smi shows memory."""
    if size_bytes is None:
        return UNKNOWN
    value = size_bytes / _GIB
    return f"{value:.0f} GiB" if value >= 10 else f"{value:.1f} GiB"


def now_and_limit(now: float | None, limit: float | None, unit: str) -> str:
    """Return `345 / 1980 MHz`, with a dash for a missing value."""
    if now is None and limit is None:
        return UNKNOWN
    left, right = (UNKNOWN if value is None else f"{value:.0f}" for value in (now, limit))
    return f"{left} / {right} {unit}"


def clock(domain: Clock) -> str:
    """Return current, maximum and application clock: `345 / 1980 MHz, set 1410`."""
    text = now_and_limit(domain.current_mhz, domain.maximum_mhz, "MHz")
    return text if domain.application_mhz is None else f"{text}, set {domain.application_mhz}"


def pcie(link: PcieLink) -> str:
    """Return generation and width, and the maximum if it differs: `gen 1 x16 of gen 5 x16`."""
    now = _generation_and_width(link.generation, link.width)
    most = _generation_and_width(link.maximum_generation, link.maximum_width)
    return (now or UNKNOWN) if most in {now, ""} else f"{now or UNKNOWN} of {most}"


def _generation_and_width(generation: int | None, width: int | None) -> str:
    parts = ("" if generation is None else f"gen {generation}", "" if width is None else f"x{width}")
    return " ".join(filter(None, parts))


def nvlink(gpu: Gpu) -> str:
    """Return active lanes, version and one-way rate: `18 x v4, 26.6 GB/s each`."""
    active = [lane for lane in gpu.nvlinks if lane.active]
    if not gpu.nvlinks:
        return UNKNOWN
    if not active:
        return f"0 of {len(gpu.nvlinks)} up"
    count = str(len(active)) if len(active) == len(gpu.nvlinks) else f"{len(active)} of {len(gpu.nvlinks)}"
    versions = sorted({lane.version for lane in active if lane.version is not None})
    rates = sorted({lane.gb_per_s for lane in active if lane.gb_per_s is not None})
    text = f"{count} {TIMES} v{'/'.join(map(str, versions))}" if versions else f"{count} lanes"
    return f"{text}, {'/'.join(f'{rate:.1f}' for rate in rates)} GB/s each" if rates else text


def switches(gpu: Gpu) -> str:
    """Return ECC with its errors, MIG, persistence, compute mode and visibility, as far as they are on or unusual."""
    parts = {
        "ECC on": gpu.ecc,
        "ECC off": gpu.ecc is False,
        f"{gpu.ecc_uncorrected} uncorrected errors": gpu.ecc_uncorrected,
        f"MIG, {len(gpu.mig_instances)} instances": gpu.mig,
        "no persistence": gpu.persistence is False,
        one_line(gpu.compute_mode or ""): gpu.compute_mode not in {None, "default"},
        "hidden from CUDA": not gpu.visible,
    }
    return ", ".join(words for words, applies in parts.items() if applies) or UNKNOWN


def limits(gpu: Gpu) -> str:
    """Return throttle reasons and the number of other processes on the GPU, or `nothing`; `—` if unknown."""
    parts = [one_line(reason) for reason in gpu.throttle_reasons]
    others = sum(not process.own for process in gpu.processes)
    if others:
        parts.append(f"{others} process{'es' * (others > 1)}")
    if parts:
        return ", ".join(parts)
    # An unreadable GPU has neither a clock nor a reason for each missing value.
    read = gpu.sm_clock.current_mhz is not None and "throttle_reasons" not in gpu.reasons
    return "nothing" if read else UNKNOWN


def models(gpus: Iterable[Gpu]) -> str:
    """Return `4 x NVIDIA H200`, several models joined by `+`."""
    counts = Counter(one_line(gpu.name)[:60] for gpu in gpus)
    return " + ".join(f"{count} {TIMES} {name}" for name, count in counts.items())
