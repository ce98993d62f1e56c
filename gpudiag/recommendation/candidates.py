"""Which strategies come into question on a machine, and why others do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudiag.errors import HardwareMissingError
from gpudiag.model.prediction import Candidate
from gpudiag.prediction.predict import PREDICTED
from gpudiag.strategies.registry import STRATEGIES

if TYPE_CHECKING:
    from gpudiag.model.facts import Facts
    from gpudiag.model.prediction import Compress

#: In this order ties are decided: what people know comes before what is special.
_ORDER = ("nccl", "gloo", "cpu-reduce", "fsdp", "ps-gpu", "ps-cpu", "data-parallel", "independent")
#: Strategies whose gradients may travel shorter than they are.
_COMPRESSED = ("nccl", "cpu-reduce")


def plainness(candidate: Candidate) -> tuple[bool, int, int]:
    """Sorts tied candidates: lossless before lossy, known before special, few options before many."""
    known = _ORDER.index(candidate.strategy) if candidate.strategy in _ORDER else len(_ORDER)
    return candidate.lossy, known, len(candidate.options)


def candidates(*, compress: Compress | None = "bf16") -> tuple[Candidate, ...]:
    """Every strategy that there is, plain, and those that can with gradients that travel as `compress`."""
    found = []
    for name in _ORDER:
        if name not in STRATEGIES or name not in PREDICTED:
            continue
        found.append(Candidate(strategy=name))
        if compress is not None and name in _COMPRESSED and "compress" in STRATEGIES[name].options:
            found.append(Candidate(strategy=name, compress=compress))
        if name == "ps-gpu":
            found.append(Candidate(strategy=name, ps_device=0))
    return tuple(found)


def why_not(facts: Facts, chosen: tuple[Candidate, ...], devices: int) -> dict[str, str]:
    """Labels of candidates that cannot run on so many devices of this machine, each with the reason.

    The size of /dev/shm is none: what processes share here has no name in any directory, and is not bounded by it.
    """
    gpus = sum(gpu.visible for gpu in facts.gpus)
    refused: dict[str, str] = {}
    for candidate in chosen:
        entry = STRATEGIES[candidate.strategy]
        reason = None
        if entry.needs_gpu and not gpus:
            reason = "it needs GPUs, and there is none to use"
        elif candidate.strategy == "ps-gpu" and not gpus:
            reason = "there is no GPU to hold the parameters"
        elif devices < entry.least_devices:
            reason = "one device exchanges nothing"
        elif candidate.strategy in {"cpu-reduce", "ps-cpu"} and gpus and _cannot_pin(facts):
            reason = f"memory cannot be locked (limit {(facts.host.memlock_bytes or 0) >> 10} KiB); raise `ulimit -l`"
        elif candidate.lossy and not gpus:
            reason = "the CPU rounds slower than it sends"
        if reason is not None:
            refused[candidate.label] = reason
    return refused


def check_possible(chosen: tuple[Candidate, ...], refused: dict[str, str], devices: int) -> None:
    """Say before anything starts when there is nothing to choose between.

    Raises:
        HardwareMissingError: one device, or none of the candidates can run.
    """
    if devices < 2:
        raise HardwareMissingError(
            "one device exchanges nothing, so there is no strategy to choose",
            "Train with --strategy independent, or choose two or more devices with --devices.",
        )
    reasons = [f"{label}: {why}" for label, why in refused.items()]
    if all(one.label in refused for one in chosen if one.strategy != "independent"):
        raise HardwareMissingError(
            f"no strategy that was asked for can run here ({'; '.join(reasons)})", "Leave --only out, or change that."
        )


def _cannot_pin(facts: Facts) -> bool:
    limit = facts.host.memlock_bytes
    # CUDA pins through the driver, which limits of a few MB do not keep from it; 0 is a ban.
    return limit == 0
