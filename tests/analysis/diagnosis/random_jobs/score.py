"""Count right diagnoses, with Wilson intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import msgspec

from gpudiag.model.analysis import Analysis
from tests.analysis.diagnosis.random_jobs.analysed import analysed, recorded
from tests.analysis.diagnosis.random_jobs.judge import Verdict, judge
from tests.analysis.diagnosis.random_jobs.law import violations
from tests.analysis.diagnosis.random_jobs.recipe import Recipe, draw
from tests.analysis.diagnosis.random_jobs.truth import Truth, truth_of


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A job with its truth, its analysis and the verdict; `unlawful` describes unexplained parts of the step."""

    recipe: Recipe
    truth: Truth
    analysis: Analysis
    verdict: Verdict
    unlawful: tuple[str, ...]


class Share(msgspec.Struct, frozen=True):
    """A share: `count` of `of`, with its confidence interval."""

    count: int
    of: int

    @property
    def interval(self) -> tuple[float, float]:
        """Return E. B. Wilson's score interval at 95 %: Journal of the American Statistical Association 22 (1927),
        209-212."""
        if not self.of:
            return 0.0, 1.0
        z, p = 1.96, self.count / self.of
        middle = (p + z**2 / (2 * self.of)) / (1 + z**2 / self.of)
        half = z / (1 + z**2 / self.of) * math.sqrt(p * (1 - p) / self.of + z**2 / (4 * self.of**2))
        return max(middle - half, 0.0), min(middle + half, 1.0)

    def __str__(self) -> str:
        low, high = self.interval
        percent = 100 * self.count / max(self.of, 1)
        return f"{self.count} of {self.of}: {percent:.1f} % ({100 * low:.0f} to {100 * high:.0f})"


def judged(seed: int, kind: str | None = None) -> Judged:
    """Draw the job of a seed, diagnose it and judge the diagnosis."""
    recipe = draw(seed, kind)
    truth = truth_of(recipe)
    try:
        analysis = analysed(recorded(recipe))
    except Exception as error:
        error.add_note(f"in the random job of seed {seed}, {recipe.kind}")
        raise
    return Judged(
        recipe=recipe,
        truth=truth,
        analysis=analysis,
        verdict=judge(truth, analysis),
        unlawful=tuple(violations(analysis)),
    )


def by_kind(jobs: Iterable[Judged]) -> dict[str, Share]:
    """Return kind of job → share of right diagnoses."""
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for job in jobs:
        total[job.recipe.kind] += 1
        right[job.recipe.kind] += job.verdict.right
    return {kind: Share(right[kind], total[kind]) for kind in sorted(total)}
