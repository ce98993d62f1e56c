"""recompilation: the host compiles in the analysed steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from gpudiag.analysis.diagnosis.calibration import MOST
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.rules.rule import (
    CannotTell,
    Proposal,
    advice_for,
    jax,
    pytorch,
    severity_of,
    tensorflow,
    unknown,
)
from gpudiag.analysis.diagnosis.simulation.graph import Graph, Scenario, Times
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.intervals import Intervals, intersect, length, lengths_inside
from gpudiag.model.analysis import Finding
from gpudiag.units import milliseconds

_ADVICE = (
    pytorch("See which guard fails: run once with TORCH_LOGS=recompiles."),
    pytorch(
        "If shapes change: torch.compile(dynamic=True), or torch._dynamo.mark_dynamic for that dimension; or pad to a "
        "few sizes."
    ),
    pytorch("If a Python value changes (a counter, a rate): make it a tensor, or keep it out of the function."),
    jax("See what is compiled, and why: jax.config.update('jax_log_compiles', True), 'jax_explain_cache_misses'."),
    jax(
        "Keep shapes and dtypes static: pad batches to a few sizes, drop the last partial batch. Pass changing numbers "
        "as arrays, not as static_argnums, and create jitted functions once, outside of the loop."
    ),
    tensorflow("Give tf.function an input_signature, or pad to a few shapes; pass tensors, not Python values."),
    unknown("Give compiled code the same shapes in each step: pad to a few sizes."),
)


class Recompilation:
    """The host compiles in the analysed steps, and the devices wait.

    A compiled function is compiled again if a guard fails, for example for a new shape or another Python value. The
    evidence has the number of compilations per step, their time and, for PyTorch, the number of recompilations of each
    frame. Savings are the step time that removing the compilations saves. Steps that compile during warm-up are
    outliers, which are left out.
    """

    code: ClassVar[str] = "recompilation"
    title: ClassVar[str] = "Code is compiled again in the steps"

    def examine(self, case: Case, what_if: WhatIf) -> Iterator[Proposal | CannotTell]:
        """Propose a step in which no host compiles."""
        share = compiling_share(case, what_if)
        if share is not None:
            yield Proposal(
                edit=partial(_without_compiling, 1.0 - share), describe=partial(self._describe, case, what_if)
            )

    def _describe(self, case: Case, what_if: WhatIf, gain: float, percent: float) -> Finding:
        """Return the finding for savings of `gain` ms per step, which are `percent` of the step."""
        per_step, compile_ms, frames = _compilations(case)
        recompiled = case.lines.recompiled() if case.lines is not None else []
        times = f"{per_step:.1f}"
        often = "once per step" if times == "1.0" else f"{times} times per step" if per_step >= 0.1 else "in some steps"
        return Finding(
            code=self.code,
            severity=severity_of(percent),
            ranks=tuple(sorted(what_if.graph.ranks.values())),
            recoverable_ms_per_step=gain,
            recoverable_percent=percent,
            confidence="high",
            place=" because ".join(filter(None, _frame_and_guard(recompiled))),
            title=f"the CPU compiles {often}, which costs {gain:.1f} ms per step",
            evidence={
                "compilations_per_step": per_step,
                "compile_ms_per_step": compile_ms,
                **({"recompilations_by_frame": frames} if frames else {}),
                **({"recompiled": recompiled} if recompiled else {}),
            },
            advice=advice_for(case.timeline.framework, _ADVICE),
        )


def _frame_and_guard(recompiled: list[dict[str, Any]]) -> tuple[str, str]:
    """Return the function that takes most compilation time, and the guard that failed; "" if unknown."""
    if not recompiled:
        return "", ""
    guard = recompiled[0]["failed_guard"]
    return f"recompiled: {recompiled[0]['frame']}", f"the guard `{guard}` failed" if guard else ""


def _without_compiling(remaining: Times, _: WhatIf, scenario: Scenario) -> Scenario:
    return replace(scenario, busy=scenario.busy * remaining, waiting=scenario.waiting * remaining)


def _compilations(case: Case) -> tuple[float, float, dict[str, int]]:
    """Return (compilations per step, ms of compiling per step, frame → recompilations) of the process that compiles
    longest; zeros if none compiles.
    """
    longest: tuple[float, float, dict[str, int]] = (0.0, 0.0, {})
    for track in case.tracks:
        compilation = None if case.work is None else case.work.compilations.get(track.trace)
        if compilation is None or not len(track.window_steps):
            continue
        window = Intervals(track.bounds[:1], track.bounds[-1:])
        steps = len(track.window_steps)
        inside = intersect(compilation.spans, window)
        compile_ms = milliseconds(length(inside) / steps)
        begun = (compilation.starts >= track.bounds[0]) & (compilation.starts < track.bounds[-1])
        if compile_ms > longest[1]:
            longest = (float(np.count_nonzero(begun)) / steps, compile_ms, compilation.frames)
    return longest


def compiling_share(case: Case, what_if: WhatIf) -> Times | None:
    """Return float64[n]: share of compiling in the time before each host node; None if no process compiled."""
    if case.work is None or not case.work.compilations:
        return None
    spans = {trace: compilation.spans for trace, compilation in case.work.compilations.items()}
    share = np.clip(ns_before_nodes(what_if.graph, spans) / np.maximum(_time(what_if.graph), 1.0), 0.0, 1.0)
    return share if share.any() else None


def ns_before_nodes(graph: Graph, spans: Mapping[int, Intervals]) -> Times:
    """Return float64[n]: ns of `spans` (index of the trace → times) from the previous host node to each node."""
    inside, host_ns = np.zeros(len(graph.host.time)), _time(graph)
    for first, after in graph.chains:
        if first < after and (of_process := spans.get(int(graph.host.process[first]))) is not None:
            reached = graph.host.time[first:after]
            begin = np.concatenate([[reached[0] - host_ns[first]], reached[:-1]])
            inside[first:after] = lengths_inside(of_process, begin.astype(np.int64), reached.astype(np.int64))
    return inside


def _time(graph: Graph) -> Times:
    """Return float64[n], ns: host time before each node, without waiting for the device."""
    return graph.host.busy + graph.host.input + graph.host.before_first_op + graph.host.untraced


def mostly_compiling(case: Case, what_if: WhatIf) -> bool:
    """Return whether most of the time in slow calls is compilation, which `recompilation` reports."""
    share = compiling_share(case, what_if)
    slow = what_if.graph.host.slow
    return share is not None and float((slow * share).sum()) >= MOST * float(slow.sum())
