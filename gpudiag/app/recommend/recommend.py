"""Implement `gpudiag recommend`: measure strategies in alternation, and choose one."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from gpudiag.app.profile.prepare import Prepared, measure_links, prepare_program
from gpudiag.app.profile.train import train
from gpudiag.app.recommend.candidates import check_possible, considered, why_not
from gpudiag.app.recommend.forecast import expected_scaling
from gpudiag.app.recommend.verdict import judge
from gpudiag.errors import UsageError
from gpudiag.machine.probes.runner import ProbeStep
from gpudiag.model.benchmarks.recommendation import RECOMMENDATION_FILE, ExpectedStep, Recommendation, RecommendRequest
from gpudiag.model.benchmarks.strategy_benchmark import (
    STRATEGY_BENCHMARK_SCHEMA,
    Entry,
    StrategyBenchmark,
    StrategyBenchmarkPlan,
    benchmark_file,
)
from gpudiag.model.facts import Facts
from gpudiag.model.job import RunOptions
from gpudiag.model.run_directory import read_json, write_json
from gpudiag.prediction.curves import curves_of
from gpudiag.training.models.registry import is_own, training_entry
from gpudiag.training.session.progress import Progress

#: Usual duration of starting and warming up, in seconds.
_START_S = 30.0
#: Usual duration of preparing each measured strategy, in seconds.
_FINALIST_S = 6.0
#: Duration in seconds of all turns, in which the strategies are measured in alternation.
_TURNS_S = 25.0
#: Number of strategies that are measured in all turns, unless all are requested.
_FINALISTS = 3
#: Number of strategies that are measured at least briefly, unless all are requested.
_MEASURED = 5


def recommend(
    request: RecommendRequest,
    observer: Callable[[Progress], None],
    say: Callable[[str], None],
    on_probe: Callable[[ProbeStep], None] | None = None,
) -> Recommendation:
    """Predict all candidates, measure the best few in alternation, and choose one.

    Measurements are kept in the run directory. `observer` is called with each message of a process, `say` with the plan
    in words, and `on_probe` from several threads with the current probe.
    """
    began = time.time()  # wall-clock time, because training processes compare it with their wall-clock time
    run = request.run
    if is_own(run.workload):
        raise UsageError(
            f"gpudiag cannot change how {run.workload} communicates gradients",
            "Name a similar built-in workload, or give --gradients with its gradient sizes and --predict-only.",
        )
    entry = training_entry(run.workload, "gpudiag recommend")
    if run.memory_format == "nhwc" and not entry.images:
        raise UsageError(f"{run.workload} has no images, so --memory-format does not apply", "Leave it out.")
    candidates = considered(request)
    prepared = _prepared(run)
    devices = prepared.plan.processes
    refused = why_not(prepared.facts, candidates, devices)
    check_possible(candidates, refused, devices)
    prepared = measure_links(prepared, on_probe)
    possible = len(candidates) - len(refused)
    measured = possible if request.every else min(_MEASURED, possible)
    plan = StrategyBenchmarkPlan(
        device=prepared.plan.job.device,
        devices=devices,
        p2p=run.p2p,
        entries=(
            Entry(
                workload=run.workload,
                batch_size=run.batch_size,
                precision=run.precision,
                memory_format=run.memory_format or "nchw",
                candidates=candidates,
                cannot=refused,
                finalists=0 if request.every else _FINALISTS,  # 0: all
                seconds=_TURNS_S,
            ),
        ),
        # Step times vary more on shared CPU cores than on GPUs, so blocks are longer on CPUs.
        block_ms=300.0 if prepared.plan.job.device == "cuda" else 600.0,
        began=began,
        limit_s=request.budget_s,
    )
    estimate_s = min(request.budget_s, time.time() - began + _START_S + measured * _FINALIST_S + _TURNS_S)
    say(
        f"{run.workload} on {devices} devices: {measured} of {len(candidates)} strategies by turns, "
        f"about {estimate_s:.0f} s"
    )
    run_dir = prepared.plan.run_dir
    train(prepared, observer, plan)
    benchmark = read_json(run_dir / benchmark_file(run.workload), StrategyBenchmark, STRATEGY_BENCHMARK_SCHEMA)
    verdict = judge(benchmark, seconds=round(time.time() - began, 1))
    recommendation = msgspec.structs.replace(
        verdict,
        scaling=_scaling(prepared.facts, benchmark, verdict),
        notes=(*verdict.notes, *_over_budget(request, benchmark, verdict)),
    )
    write_json(run_dir / RECOMMENDATION_FILE, recommendation)
    return recommendation


def _prepared(run: RunOptions) -> Prepared:
    """Prepare the processes. Batch size, precision and layout are left out, because the benchmark's plan has them."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{run.workload}-recommend"
    return prepare_program(
        msgspec.structs.replace(
            run,
            batch_size=None,
            precision=None,
            memory_format=None,
            output=run.output or f"gpudiag-runs/{name}",
        )
    )


def _scaling(facts: Facts, benchmark: StrategyBenchmark, verdict: Recommendation) -> tuple[ExpectedStep, ...]:
    """Return the expected scaling of the recommended strategy; empty if its measurement is not ranked."""
    candidates = {prediction.candidate.label: prediction.candidate for prediction in benchmark.predictions}
    chosen = next(row for row in verdict.ranking if row.strategy == verdict.recommended)
    if chosen.unranked is not None:
        return ()
    return expected_scaling(
        facts,
        benchmark.gradients,
        candidates[verdict.recommended],
        benchmark.devices,
        p2p=benchmark.p2p,
        curves=curves_of(benchmark.transports),
        measured_ms=chosen.measured_step_ms,
    )


def _over_budget(request: RecommendRequest, benchmark: StrategyBenchmark, verdict: Recommendation) -> tuple[str, ...]:
    """Return a note if the command took over a tenth longer than its budget."""
    if (verdict.seconds or 0.0) <= 1.1 * request.budget_s:
        return ()
    start = f"starting the processes took {benchmark.seconds.get('start', 0.0):.0f} s"
    took = f"took {verdict.seconds:.0f} s of a budget of {request.budget_s:.0f}"
    return (f"{took}: {start}, and one strategy is always measured",)
