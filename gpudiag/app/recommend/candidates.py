"""Which strategies come into question on a machine, and why others do not."""

from __future__ import annotations

from gpudiag.errors import HardwareMissingError, UsageError, there_are
from gpudiag.model.benchmarks.prediction import Candidate, Compress
from gpudiag.model.benchmarks.recommendation import RecommendRequest
from gpudiag.model.facts import Facts
from gpudiag.model.job import DEFAULT_FRAMEWORK, INDEPENDENT
from gpudiag.training.strategies.registry import strategies, strategy_entry
from gpudiag.training.strategies.tensorflow1 import FRAMEWORK as PREDICTED_ONLY


def candidates(*, compress: Compress | None = "bf16", framework: str = DEFAULT_FRAMEWORK) -> tuple[Candidate, ...]:
    """Every strategy that there is, plain, and those that can with gradients that travel as `compress`."""
    known_first = sorted(strategies(framework).values(), key=lambda strategy: strategy.preference_rank)
    return tuple(candidate for strategy in known_first for candidate in strategy.candidates(compress))


def considered(request: RecommendRequest) -> tuple[Candidate, ...]:
    """The candidates that the request leaves. Raises UsageError where it names one that there is not."""
    every = candidates(compress=None if request.exact else request.compress, framework=request.run.framework)
    if not request.only:
        return every
    known = {candidate.label: candidate for candidate in every}
    unknown = [label for label in request.only if label not in known]
    if unknown:
        raise UsageError(f"there is no strategy '{unknown[0]}' to recommend", there_are(unknown[0], known))
    return tuple(candidate for candidate in every if candidate.label in {*request.only, INDEPENDENT})


def why_not(facts: Facts, chosen: tuple[Candidate, ...], devices: int) -> dict[str, str]:
    """Labels of candidates that cannot run on so many devices of this machine, each with the reason."""
    reasons = {one.label: strategy_entry(one.strategy, one.framework).why_not(facts, one, devices) for one in chosen}
    return {label: reason for label, reason in reasons.items() if reason is not None}


def flags(candidate: Candidate, *, p2p: bool = True) -> tuple[str, ...]:
    """Options for `gpudiag profile`; none for what gpudiag predicts and does not run."""
    if candidate.framework == PREDICTED_ONLY:
        return ()
    return ("--strategy", candidate.strategy, *candidate.options, *(() if p2p else ("--no-p2p",)))


def code_change(candidate: Candidate) -> str:
    """The lines for a PyTorch training loop, one per line."""
    return "\n".join(strategy_entry(candidate.strategy, candidate.framework).code(candidate))


def check_possible(chosen: tuple[Candidate, ...], refused: dict[str, str], devices: int) -> None:
    """Say before anything starts when there is nothing to choose between.

    Raises:
        HardwareMissingError: one device, or none of the candidates can run.
    """
    if devices < 2:
        raise HardwareMissingError(
            "one device exchanges nothing, so there is no strategy to choose",
            f"Train with --strategy {INDEPENDENT}, or choose two or more devices with --devices.",
        )
    reasons = [f"{label}: {why}" for label, why in refused.items()]
    if all(one.label in refused for one in chosen if one.strategy != INDEPENDENT):
        raise HardwareMissingError(
            f"no strategy that was asked for can run here ({'; '.join(reasons)})", "Leave --only out, or change that."
        )
