"""Which candidates are worth measuring, by what is predicted of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudiag.model.prediction import Candidate, Prediction

#: Predictions are wrong by as much now and then.
MAY_ERR = 0.2
MOST = 6
#: What people take by default, on GPUs and on CPUs: what is gained is said over these.
USUAL = ("nccl", "gloo")


def finalists_of(predictions: Sequence[Prediction], least: int) -> list[Candidate]:
    """The best by prediction, whoever is so near that the prediction may err, and what people take by default.

    Args:
        predictions: the cheapest first, as `predict` gives them.
        least: how many at least, where there are as many that can run.
    """
    possible = [one for one in predictions if one.cannot is None and one.candidate.strategy != "independent"]
    if not possible:
        return []
    best = possible[0].step_ms or 0.0
    near = [one.candidate for one in possible if (one.step_ms or 0.0) <= best * (1 + MAY_ERR)]
    chosen = (near if len(near) > least else [one.candidate for one in possible[:least]])[:MOST]
    usual = next((one.candidate for one in possible if one.candidate.label in USUAL), None)
    return [*chosen, usual] if usual is not None and usual not in chosen else chosen
