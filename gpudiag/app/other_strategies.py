"""What other strategies would save of a step, beside what the exchange costs in the one that was recorded."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpudiag.app.recommend.candidates import candidates, why_not
from gpudiag.model.analysis import Finding
from gpudiag.model.benchmarks.prediction import Candidate, Gradients, Prediction
from gpudiag.model.facts import Facts
from gpudiag.model.probed import peer_access_of
from gpudiag.model.run import RunRecord
from gpudiag.prediction.overlap import parts_of
from gpudiag.training.strategies.predict import predict
from gpudiag.training.strategies.registry import strategies

#: Of predicted step times 60 of 73 were within this share of the measured ones (docs/predictions.md): what is predicted
#: to save less may save nothing.
_MAY_ERR = 0.15


def beside_other_strategies(findings: Sequence[Finding], run: RunRecord | None, facts: Facts) -> tuple[Finding, ...]:
    """The findings; with the exchange stands what other strategies are predicted to save of it on this machine.

    Nothing is added where the machine's links or the model's gradients were not measured, or the job's strategy is not
    one whose cost can be predicted. A saving is the share of its own predicted cost that another strategy is predicted
    not to have, of the cost that was found; it is named where it is more than predictions err by.
    """
    return tuple(_told(finding, run, facts) for finding in findings)


def _told(finding: Finding, run: RunRecord | None, facts: Facts) -> Finding:
    if finding.code != "communication-bound" or run is None or not facts.bandwidth:
        return finding
    gain, step_ms = finding.recoverable_ms_per_step or 0.0, finding.evidence.get("step_ms_now")
    if not isinstance(step_ms, float) or not 0 < gain < step_ms:
        return finding
    saved = _savings(run, facts, gain, step_ms)
    if not saved:
        return finding
    best = next(iter(saved))
    words = (
        f"Exchange another way: `--strategy {best}` is predicted to save {saved[best]:.1f} ms of a step on this "
        "machine; `gpudiag recommend` measures it."
    )
    # Links that lie idle come first: with them most strategies are fast.
    first = 1 if "nvlink_gb_per_s" in finding.evidence else 0
    return msgspec.structs.replace(
        finding,
        evidence={**finding.evidence, "savings_ms_by_strategy": saved},
        advice=(*finding.advice[:first], words, *finding.advice[first:]),
    )


def _savings(run: RunRecord, facts: Facts, gain: float, step_ms: float) -> dict[str, float]:
    """By candidate, what it would save of a step in ms: lossless ones first, of these the best first."""
    sizes = run.model.gradient_sizes if run.model is not None else ()
    if run.nodes > 1 or run.world_size < 2 or not sizes or run.strategy not in strategies(run.framework):
        return {}
    gradients = Gradients(name=run.workload, sizes=sizes, compute=parts_of(step_ms - gain, "found by the replay"))
    chosen = candidates(framework=run.framework)
    own = _own(run, chosen)
    refused = why_not(facts, chosen, run.world_size)
    predicted = predict(facts, gradients, chosen, run.world_size, p2p=peer_access_of(run), cannot=refused)
    now = next((one for one in predicted if one.candidate == own and one.cannot is None), None)
    if now is None or now.exposed_ms <= 0:
        return {}
    others = [one for one in predicted if _communications(one)]
    saved = {one.candidate: gain * (1 - max(one.exposed_ms, 0.0) / now.exposed_ms) for one in others}
    certain = {candidate: ms for candidate, ms in saved.items() if ms >= _MAY_ERR * step_ms}
    ordered = sorted(certain.items(), key=lambda item: (item[0].lossy, -item[1], item[0].label))
    return {candidate.label: ms for candidate, ms in ordered}


def _own(run: RunRecord, chosen: Sequence[Candidate]) -> Candidate | None:
    """The candidate that the run trained with; None where it had options that none of them has."""
    compress = run.options.get("compress")
    compress = None if compress in {None, "", "none"} else compress
    return next((one for one in chosen if one.strategy == run.strategy and one.compress == compress), None)


def _communications(one: Prediction) -> bool:
    return one.cannot is None and strategies(one.candidate.framework)[one.candidate.strategy].communicates
