"""launch-bound: the host cannot launch fast enough."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np

from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.examples import DDP, Job, fetch, kernels
from gpudiag.analysis.diagnosis.replay.simulate import Costs
from gpudiag.analysis.diagnosis.replay.what_if import PARTS, WhatIf
from gpudiag.analysis.diagnosis.rules.advice import TF_COMPILE, TF_SEVERAL_STEPS, advice_for, pytorch, tensorflow
from gpudiag.analysis.diagnosis.rules.rule import CannotTell, Examples, Proposal, notable, severity_of
from gpudiag.model.analysis import Finding
from gpudiag.model.timeline import OpClass

#: Kernels shorter than this take less time to run than to launch.
_TINY_US = 10.0

_ADVICE = (
    TF_COMPILE,
    tensorflow("A larger batch lets each kernel do more."),
    tensorflow(TF_SEVERAL_STEPS),
    pytorch("Launch a step at once: torch.compile(mode='reduce-overhead'), or torch.cuda.graph around the step."),
    pytorch("Make each kernel do more: a larger batch, fused layers (torch.compile), a fused optimizer (fused=True)."),
    "Keep Python out of the loop: no per-parameter loops, no metrics each step.",
)


class LaunchBound:
    """The devices stand idle while the host runs framework and Python code to launch the next kernel.

    A launch costs the host several microseconds in the framework. Kernels that run shorter than that leave the device
    waiting. What the profiler itself adds to each launch was taken out before this was judged. The gain is what a CUDA
    graph would give, which launches a whole step at once.
    """

    code: ClassVar[str] = "launch-bound"
    order: ClassVar[int] = 4
    title: ClassVar[str] = "The host cannot launch fast enough"

    FIRES: ClassVar[Examples] = (
        ("300 kernels of 3 µs", Job(ranks=1, step=(kernels(1, count=300, launch_us=12),))),
        ("long kernels, longer to launch", Job(ranks=1, step=(kernels(10, count=100, launch_us=200),))),
    )
    SILENT: ClassVar[Examples] = (
        ("kernels that last longer than their launch", Job(ranks=4, step=DDP)),
        (
            "a slow host whose launches hide behind the device once the loader is fixed",
            Job(ranks=1, step=(fetch(40), kernels(30, count=300, launch_us=50))),
        ),
    )
    ABSTAINS: ClassVar[Examples] = ()

    def examine(self, case: Case) -> Iterator[Proposal | CannotTell]:
        """One proposal: no rank takes time to launch its step."""
        what_if = case.what_if
        if what_if is None or case.lanes[0].is_cpu:
            return
        yield Proposal(edit=partial(_common, what_if), describe=partial(self._describe, case, what_if))

    def _describe(self, case: Case, what_if: WhatIf, gain: float, percent: float) -> Finding:
        device, graph = what_if.graph.device, what_if.graph
        kernels = (device.end - device.start)[device.op_class == OpClass.COMPUTE] / 1e3
        per_step = len(kernels) / max(graph.steps, 1) / max(len(case.lanes), 1)
        typical = float(np.median(kernels)) if len(kernels) else 0.0
        tiny = typical < _TINY_US
        host_ms = float(what_if.busy.sum()) / max(graph.steps, 1) / max(len(graph.ranks), 1) / 1e6
        return Finding(
            code=self.code,
            severity=severity_of(percent),
            ranks=case.timeline.ranks_present,
            cause="tiny kernels" if tiny else "Python and framework overhead",
            recoverable_ms_per_step=gain,
            recoverable_percent=percent,
            confidence="high" if tiny else "medium",
            title=f"the devices wait {gain:.1f} ms of each step for the host to launch {per_step:.0f} kernels",
            evidence={
                "kernels_per_step": per_step,
                "median_kernel_us": typical,
                "host_launching_ms_per_step": host_ms,
                "profiler_ms_per_step_taken_out": what_if.replayed_ms - what_if.corrected_ms,
            },
            advice=advice_for(case.timeline.framework, _ADVICE),
        )


def _common(what_if: WhatIf, costs: Costs) -> Costs:
    """Steps as CUDA graphs, of ranks that are level: one host that is slower than the others makes a straggler.

    In a graph kernels also follow each other faster. Where the device does not wait for the host that would be all of
    the gain, and is not counted.
    """
    graph = what_if.as_cuda_graph(costs)
    busy = costs.busy - np.maximum(
        what_if.levelled(costs, PARTS).busy - what_if.exchanged.busy - what_if.exchanged.calls, 0.0
    )
    launched = replace(costs, busy=busy)
    if not notable(what_if.gain_ms(launched, costs), what_if.step_ms(costs)):
        return launched
    return replace(graph, busy=busy)
