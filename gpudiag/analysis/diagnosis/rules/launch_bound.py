"""launch-bound: the host cannot launch fast enough."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from gpudiag.analysis.diagnosis.calibration import TINY_KERNEL_US
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.kernels.dispatch import dispatches_per_step, dispatching_share, without_dispatching
from gpudiag.analysis.diagnosis.kernels.recompilation import mostly_compiling
from gpudiag.analysis.diagnosis.places import few_slow_calls
from gpudiag.analysis.diagnosis.rules.rule import (
    TF_COMPILE,
    TF_SEVERAL_STEPS,
    CannotTell,
    Proposal,
    advice_for,
    jax,
    others,
    pytorch,
    severity_of,
    tensorflow,
)
from gpudiag.analysis.diagnosis.simulation.counterfactuals import as_cuda_graph, without_common_slow_calls
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.intervals import median
from gpudiag.model.analysis import Finding
from gpudiag.model.timeline import OpClass

_SLOW_ADVICE = (
    (
        "A call with milliseconds of self time may plan, compile or allocate each time: give it the same shapes "
        "in each step (pad or bucket sequence lengths to a few sizes)."
    ),
    "Or it computes on the CPU, on tensors in host memory: move them to the device, or do it every N steps.",
    pytorch(
        "Attention and convolutions plan for each new shape: torch.backends.cudnn.benchmark = False, or another kernel "
        "(torch.nn.attention.sdpa_kernel). Compiled code: torch._dynamo.mark_dynamic, and TORCH_LOGS=recompiles."
    ),
    pytorch("Allocation: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; no empty_cache() in the loop."),
    jax(
        "Recompilation shows as slow calls: jax.config.update('jax_log_compiles', True) names it; pad to a few shapes."
    ),
    tensorflow("Retracing shows as slow calls: give tf.function an input_signature, or pad to a few shapes."),
)
_ADVICE = (
    TF_COMPILE,
    tensorflow("A larger batch lets each kernel do more."),
    tensorflow(TF_SEVERAL_STEPS),
    pytorch("Launch a whole step at once: torch.compile(mode='reduce-overhead'), or torch.cuda.graph around the step."),
    pytorch("Use fewer, larger kernels: a larger batch, fused layers (torch.compile), a fused optimizer (fused=True)."),
    jax("Put the whole step (loss, gradients, update) into one jax.jit: operations outside of it run one by one."),
    jax("Put several steps into one jax.lax.scan, or unroll less Python: fewer dispatches per step."),
    jax("Read values (float(loss)) every N steps: then the next step is dispatched while the device computes."),
    others("Use fewer, larger kernels: a larger batch, fused operations."),
    "Keep Python out of the loop: no per-parameter loops, no metrics each step.",
)


class LaunchBound:
    """The devices are idle while the host runs Python and framework code to launch the next kernel.

    A launch takes the host several microseconds, so that the device waits after each shorter kernel. Savings are those
    of a CUDA graph, which launches a whole step at once. The profiler's overhead per launch is removed first, and then
    waste that other findings report, because the device may hide the launches of the remaining job.

    A few slow calls are reported separately, with their self time, because their causes differ: they plan for new
    shapes, compile, allocate, or compute on the CPU.

    JAX's CPU devices are idle too while the main thread dispatches functions. Each operation outside of `jax.jit` is
    such a function. Savings are those of a step without dispatching.
    """

    code: ClassVar[str] = "launch-bound"
    title: ClassVar[str] = "The CPU launches kernels too slowly"

    def examine(self, case: Case, what_if: WhatIf) -> Iterator[Proposal | CannotTell]:
        """Propose a step without slow calls, if few calls are slow, and a step launched as a CUDA graph.

        On CPUs, propose a step without dispatching.
        """
        if case.tracks[0].is_cpu:
            share = dispatching_share(case, what_if)  # 0 to 1 for each host node
            if share is not None:
                yield Proposal(
                    edit=partial(without_dispatching, 1.0 - share),  # the share of host work that remains
                    describe=partial(self._describe_dispatching, case, what_if),
                )
            return
        # `recompilation` reports slow calls that compile.
        if what_if.graph.host.slow.any() and not mostly_compiling(case, what_if):
            slow = few_slow_calls(case, case.timeline.ranks_present)
            if slow:
                yield Proposal(
                    edit=without_common_slow_calls, describe=partial(self._describe_slow, case, what_if, slow)
                )
        yield Proposal(edit=as_cuda_graph, describe=partial(self._describe, case, what_if), kind="launching")

    def _describe_slow(
        self, case: Case, what_if: WhatIf, slow: dict[str, tuple[float, float]], gain: float, percent: float
    ) -> Finding:
        """Return the finding for savings of `gain` ms; `slow`: operator → (self ms, calls) per step, slowest first."""
        first, (own_ms, calls) = next(iter(slow.items()))
        return Finding(
            code=self.code,
            severity=severity_of(percent),
            ranks=tuple(sorted(what_if.graph.ranks.values())),
            cause="slow operators",
            recoverable_ms_per_step=gain,
            recoverable_percent=percent,
            confidence="high",
            title=f"GPUs idle during a few slow CPU operators, mainly {first}, which costs {gain:.1f} ms per step",
            place=f"in {first}: {own_ms:.1f} ms self time in {calls:.1f} calls per step",
            evidence={
                "own_ms_per_step": {name: ms for name, (ms, _) in slow.items()},
                "slow_calls_per_step": {name: times for name, (_, times) in slow.items()},
            },
            advice=advice_for(case.timeline.framework, _SLOW_ADVICE),
        )

    def _describe_dispatching(self, case: Case, what_if: WhatIf, gain: float, percent: float) -> Finding:
        """Return the finding about dispatches, which cost `gain` ms per step, or `percent` of the step."""
        functions, dispatch_ms = dispatches_per_step(case)
        return Finding(
            code=self.code,
            severity=severity_of(percent),
            ranks=case.timeline.ranks_present,
            cause="Python and framework overhead",
            recoverable_ms_per_step=gain,
            recoverable_percent=percent,
            confidence="medium",
            title=f"devices idle while Python dispatches functions, which costs {gain:.1f} ms per step",
            place=f"{functions:.0f} function{'' if round(functions) == 1 else 's'} per step",
            evidence={
                "dispatches_per_step": functions,
                "dispatch_ms_per_step": dispatch_ms,
                "profiler_overhead_ms_per_step": what_if.simulated_ms - what_if.corrected_ms,
            },
            advice=advice_for(case.timeline.framework, _ADVICE),
        )

    def _describe(self, case: Case, what_if: WhatIf, gain: float, percent: float) -> Finding:
        """Return the finding for savings of `gain` ms per step, which are `percent` of the step."""
        device, graph = what_if.graph.device, what_if.graph
        kernel_us = (device.end - device.start)[device.op_class == OpClass.COMPUTE] / 1e3
        per_step = len(kernel_us) / graph.steps / len(case.tracks)
        typical_us = median(kernel_us)
        tiny = typical_us < TINY_KERNEL_US  # shorter than their launches
        host_ms = float(what_if.corrected.busy.sum()) / graph.steps / len(graph.ranks) / 1e6
        return Finding(
            code=self.code,
            severity=severity_of(percent),
            ranks=case.timeline.ranks_present,
            cause="tiny kernels" if tiny else "Python and framework overhead",
            recoverable_ms_per_step=gain,
            recoverable_percent=percent,
            confidence="high" if tiny else "medium",
            title=f"GPUs idle because the CPU launches kernels too slowly, which costs {gain:.1f} ms per step",
            evidence={
                "kernels_per_step": per_step,
                "median_kernel_us": typical_us,
                "kernel_launch_ms_per_step": host_ms,
                "profiler_overhead_ms_per_step": what_if.simulated_ms - what_if.corrected_ms,
            },
            advice=advice_for(case.timeline.framework, _ADVICE),
        )
