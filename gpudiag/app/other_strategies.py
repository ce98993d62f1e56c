"""Predict the savings of other strategies for the communication of a recorded run."""

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

#: 60 of 73 predicted step times were within this share of the measured step times (docs/predictions.md), so a smaller
#: predicted saving is not significant.
_MAY_ERR = 0.15


def beside_other_strategies(findings: Sequence[Finding], run: RunRecord | None, facts: Facts) -> tuple[Finding, ...]:
    """Add the predicted savings of other strategies to findings about communication.

    Nothing is added if the machine's links or the model's gradients are unknown, or if the cost of the job's strategy
    cannot be predicted. The savings of a strategy are

        (exposed communication in the finding) * (1 - (predicted for the strategy) / (predicted for the job's strategy))

    where both predictions are of exposed communication. Savings below the error of predictions are omitted.
    """
    return tuple(_with_savings(finding, run, facts) for finding in findings)


def _with_savings(finding: Finding, run: RunRecord | None, facts: Facts) -> Finding:
    """Return the finding with the savings of other strategies in its evidence and advice, if any are known."""
    if finding.code != "communication-bound" or run is None or not facts.bandwidth:
        return finding
    gain_ms, step_ms = finding.recoverable_ms_per_step or 0.0, finding.evidence.get("step_ms_now")
    if not isinstance(step_ms, float) or not 0 < gain_ms < step_ms:
        return finding
    savings = _savings(run, facts, gain_ms, step_ms)
    if not savings:
        return finding
    best = next(iter(savings))
    advice = (
        f"Change the strategy: `--strategy {best}` is predicted to save {savings[best]:.1f} ms of a step on this "
        "machine; `gpudiag recommend` measures it."
    )
    # Advice to use idle NVLinks comes first, because most strategies are fast over them.
    position = 1 if "nvlink_gb_per_s" in finding.evidence else 0
    return msgspec.structs.replace(
        finding,
        evidence={**finding.evidence, "savings_ms_by_strategy": savings},
        advice=(*finding.advice[:position], advice, *finding.advice[position:]),
    )


def _savings(run: RunRecord, facts: Facts, gain_ms: float, step_ms: float) -> dict[str, float]:
    """Return {label of a candidate strategy: ms of a step that it saves}: lossless candidates first, then by savings.

    Savings below `_MAY_ERR` are omitted. The result is empty if nothing can be predicted, for instance for several
    nodes, because their network is unknown.

    Args:
        run, facts: the recorded run and its machine.
        gain_ms: exposed communication of a step, as the finding reports it.
        step_ms: the simulated step time.
    """
    sizes = run.model.gradient_sizes if run.model is not None else ()
    if run.nodes > 1 or run.world_size < 2 or not sizes or run.strategy not in strategies(run.framework):
        return {}
    gradients = Gradients(
        name=run.workload, sizes=sizes, compute=parts_of(step_ms - gain_ms, "found by the simulation")
    )
    all_candidates = candidates(framework=run.framework)
    refused = why_not(facts, all_candidates, run.world_size)
    predictions = predict(facts, gradients, all_candidates, run.world_size, p2p=peer_access_of(run), cannot=refused)
    exposed_now_ms = _exposed_ms(predictions, _candidate_of(run, all_candidates))
    if exposed_now_ms <= 0:
        return {}
    savings = {
        prediction.candidate: gain_ms * (1 - max(prediction.exposed_ms, 0.0) / exposed_now_ms)
        for prediction in predictions
        if _communicates(prediction)
    }
    significant = [(candidate, ms) for candidate, ms in savings.items() if ms >= _MAY_ERR * step_ms]
    significant.sort(key=lambda saving: (saving[0].lossy, -saving[1], saving[0].label))
    return {candidate.label: ms for candidate, ms in significant}


def _exposed_ms(predictions: Sequence[Prediction], candidate: Candidate | None) -> float:
    """Return the predicted exposed communication of a candidate; 0 if it cannot be predicted."""
    return next(
        (
            prediction.exposed_ms
            for prediction in predictions
            if prediction.candidate == candidate and prediction.cannot is None
        ),
        0.0,
    )


def _candidate_of(run: RunRecord, all_candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the candidate with which the run trained; None if no candidate has its options."""
    compress = run.options.get("compress")
    compress = None if compress in {None, "", "none"} else compress
    return next(
        (
            candidate
            for candidate in all_candidates
            if candidate.strategy == run.strategy and candidate.compress == compress
        ),
        None,
    )


def _communicates(prediction: Prediction) -> bool:
    candidate = prediction.candidate
    return prediction.cannot is None and strategies(candidate.framework)[candidate.strategy].communicates
