"""List the candidate strategies, and the reasons why some cannot run on a machine."""

from __future__ import annotations

from gpudiag.errors import HardwareMissingError, UsageError, there_are
from gpudiag.model.benchmarks.prediction import Candidate, Compress
from gpudiag.model.benchmarks.recommendation import RecommendRequest
from gpudiag.model.facts import Facts
from gpudiag.model.job import DEFAULT_FRAMEWORK, INDEPENDENT
from gpudiag.training.strategies.registry import strategies, strategy_entry
from gpudiag.training.strategies.tensorflow1 import FRAMEWORK as PREDICTED_ONLY


def candidates(*, compress: Compress | None = "bf16", framework: str = DEFAULT_FRAMEWORK) -> tuple[Candidate, ...]:
    """Return each strategy, and a second candidate with gradients in `compress` (unless None) if this pays."""
    by_preference = sorted(strategies(framework).values(), key=lambda strategy: strategy.preference_rank)
    return tuple(candidate for strategy in by_preference for candidate in strategy.candidates(compress))


def considered(request: RecommendRequest) -> tuple[Candidate, ...]:
    """Return the candidates of the request; raise UsageError if it names an unknown strategy."""
    available = candidates(compress=None if request.exact else request.compress, framework=request.run.framework)
    if not request.only:
        return available
    labels = [candidate.label for candidate in available]
    unknown = [label for label in request.only if label not in labels]
    if unknown:
        raise UsageError(f"there is no strategy '{unknown[0]}' to recommend", there_are(unknown[0], labels))
    # `independent` shows the step without communication.
    return tuple(candidate for candidate in available if candidate.label in {*request.only, INDEPENDENT})


def why_not(facts: Facts, chosen: tuple[Candidate, ...], devices: int) -> dict[str, str]:
    """Return {label of a candidate: reason why it cannot run on this number of devices of the machine}."""
    reasons = {
        candidate.label: strategy_entry(candidate.strategy, candidate.framework).why_not(facts, candidate, devices)
        for candidate in chosen
    }
    return {label: reason for label, reason in reasons.items() if reason is not None}


def flags(candidate: Candidate, *, p2p: bool = True) -> tuple[str, ...]:
    """Return the options for `gpudiag profile`; none for strategies that gpudiag only predicts."""
    if candidate.framework == PREDICTED_ONLY:
        return ()
    return ("--strategy", candidate.strategy, *candidate.options, *(() if p2p else ("--no-p2p",)))


def code_change(candidate: Candidate) -> str:
    """Return the lines to add to a PyTorch training loop."""
    return "\n".join(strategy_entry(candidate.strategy, candidate.framework).code(candidate))


def check_possible(chosen: tuple[Candidate, ...], refused: dict[str, str], devices: int) -> None:
    """Raise HardwareMissingError if there is only one device, or if `refused` has a reason for every candidate."""
    if devices < 2:
        raise HardwareMissingError(
            "one device does not communicate, so there is no strategy to choose",
            f"Train with --strategy {INDEPENDENT}, or choose two or more devices with --devices.",
        )
    reasons = [f"{label}: {why}" for label, why in refused.items()]
    if all(candidate.label in refused for candidate in chosen if candidate.strategy != INDEPENDENT):
        raise HardwareMissingError(
            f"none of the requested strategies can run here ({'; '.join(reasons)})",
            "Leave --only out, or name other strategies.",
        )
