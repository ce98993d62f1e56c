"""Parts of facts in words, as a table cell or a line holds them; `—` for what is not known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gpudiag.model.facts import Clock, Gpu, PcieLink
from gpudiag.model.sanitize import one_line
from gpudiag.report.figures import TIMES, UNKNOWN

_GIB = 1 << 30


def gib(size_bytes: int | None) -> str:
    """Bytes in GiB, as memory is sold and nvidia-smi shows it."""
    if size_bytes is None:
        return UNKNOWN
    value = size_bytes / _GIB
    return f"{value:.0f} GiB" if value >= 10 else f"{value:.1f} GiB"


def of(now: float | None, most: float | None, unit: str) -> str:
    """`345 / 1980 MHz`; a missing part is a dash, and `—` alone where both are."""
    if now is None and most is None:
        return UNKNOWN
    left, right = (UNKNOWN if value is None else f"{value:.0f}" for value in (now, most))
    return f"{left} / {right} {unit}"


def clock(domain: Clock) -> str:
    """Current and maximum, and the application clock where one is set: `345 / 1980 MHz, set 1410`."""
    text = of(domain.current_mhz, domain.maximum_mhz, "MHz")
    return text if domain.application_mhz is None else f"{text}, set {domain.application_mhz}"


def pcie(link: PcieLink) -> str:
    """Generation and width now, and at most where that differs: `gen 1 x16 of gen 5 x16`."""
    now, most = _side(link.generation, link.width), _side(link.maximum_generation, link.maximum_width)
    if now is None and most is None:
        return UNKNOWN
    if now == most or most is None:
        return str(now)
    return f"{now or UNKNOWN} of {most}"


def _side(generation: int | None, width: int | None) -> str | None:
    if generation is None and width is None:
        return None
    parts = [f"gen {generation}"] if generation is not None else []
    return " ".join([*parts, f"x{width}"] if width is not None else parts)


def nvlink(gpu: Gpu) -> str:
    """Active lanes, version and one-way rate: `18 x v4, 26.6 GB/s each`; lanes that are down are counted."""
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
    """ECC, MIG, persistence and compute mode: only what is on, off where one expects on, or unusual."""
    parts = []
    if gpu.ecc is not None:
        parts.append("ECC on" if gpu.ecc else "ECC off")
    if gpu.ecc_uncorrected:
        parts.append(f"{gpu.ecc_uncorrected} uncorrected errors")
    if gpu.mig:
        parts.append(f"MIG, {len(gpu.mig_instances)} instances")
    if gpu.persistence is False:
        parts.append("no persistence")
    if gpu.compute_mode not in {None, "default"}:
        parts.append(one_line(gpu.compute_mode or ""))
    if not gpu.visible:
        parts.append("hidden from CUDA")
    return ", ".join(parts) or UNKNOWN


def state(gpu: Gpu) -> str:
    """Why its clocks are where they are, and who holds it."""
    parts = [one_line(reason) for reason in gpu.throttle_reasons]
    held = sum(not process.own for process in gpu.processes)
    if held:
        parts.append(f"{held} process" + ("es" if held > 1 else ""))
    if parts:
        return ", ".join(parts)
    read = gpu.sm_clock.current_mhz is not None and "throttle_reasons" not in gpu.reasons
    return "nothing" if read else UNKNOWN


def models(gpus: Iterable[Gpu]) -> str:
    """`4 x NVIDIA H200`, or several such joined by `+`."""
    counts = Counter(one_line(gpu.name)[:60] for gpu in gpus)
    return " + ".join(f"{count} {TIMES} {name}" for name, count in counts.items())
