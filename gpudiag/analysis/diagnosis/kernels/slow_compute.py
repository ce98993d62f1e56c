"""slow-compute: kernels take longer than other kernels that would compute the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from gpudiag.analysis.compute.launchers import modules_of
from gpudiag.analysis.diagnosis.calibration import ESTIMATED_PERCENT
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.kernels.causes import CauseName, SlowKernels, slow_kernels
from gpudiag.analysis.diagnosis.kernels.graph_kernels import (
    GraphKernels,
    Shortening,
    graph_kernels,
    removed_host_ms,
    removed_ms,
)
from gpudiag.analysis.diagnosis.rules.rule import (
    Advice,
    CannotTell,
    Proposal,
    advice_for,
    jax,
    others,
    pytorch,
    severity_of,
    tensorflow,
)
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.analysis import Finding

_MOST_MODULES = 3

#: Causes that a compiler removes from nearly every eager program. These causes are `info` at any size, because they are
#: no fault of the program.
BY_A_COMPILER: frozenset[CauseName] = frozenset({"unfused-elementwise", "small-kernels"})

#: Causes that a compiler removes. A compiler also chooses the layout of convolutions, and fuses the operations on
#: attention scores. The evidence of these causes states their savings together.
COMPILED: tuple[CauseName, ...] = ("unfused-elementwise", "layout-conversion", "eager-attention")

_WORDS: dict[CauseName, str] = {
    "fp32-matmul": "matrix products in fp32 run without tensor cores",
    "layout-conversion": "convolutions convert between tensor layouts",
    "eager-attention": "attention runs unfused",
    "unfused-optimizer": "the optimizer runs unfused",
    "unfused-elementwise": "elementwise operations run unfused",
    "small-kernels": "gaps between launch-sized kernels take long",
}
_ADVICE: dict[CauseName, Advice] = {
    "fp32-matmul": (
        pytorch("Allow {precision}: {setting}."),
        pytorch("bf16 saves more, also of memory traffic: torch.autocast('cuda', dtype=torch.bfloat16)."),
        tensorflow("Set tf.keras.mixed_precision.set_global_policy('mixed_bfloat16'), and leave TF32 enabled."),
        jax("Set jax.config.update('jax_default_matmul_precision', 'tensorfloat32'), or compute in bfloat16."),
        others("Compute matrix products in a precision that the tensor cores have."),
    ),
    "layout-conversion": (
        pytorch("Keep channels last: model.to(memory_format=torch.channels_last), and the same for the input images."),
        tensorflow("Keep channels last: data_format='channels_last' in all layers."),
        jax("Use NHWC and HWIO dimension numbers in convolutions."),
        others("Keep the layout that the convolutions compute in (NHWC) in all layers."),
    ),
    "eager-attention": (
        pytorch("Use torch.nn.functional.scaled_dot_product_attention (transformers: attn_implementation='sdpa')."),
        tensorflow("Use keras.layers.MultiHeadAttention with flash attention (keras.config.enable_flash_attention())."),
        jax("Use jax.nn.dot_product_attention(implementation='cudnn')."),
        others("Use a fused attention kernel."),
    ),
    "unfused-optimizer": (
        pytorch("Construct the optimizer with fused=True (or foreach=True where that is not available)."),
        tensorflow("Compile the update: jit_compile=True (--compile)."),
        jax("Put the update into the jitted step."),
        others("Use a fused optimizer."),
    ),
    "unfused-elementwise": (
        pytorch("Compile the model, or the function with these operations: torch.compile."),
        tensorflow("Compile the model: jit_compile=True (--compile)."),
        jax("Put these operations into one jax.jit."),
        others("Fuse elementwise operations with a compiler."),
    ),
    "small-kernels": (
        "Use a larger batch, so that each kernel does more.",
        pytorch("Launch the step as a CUDA graph: torch.compile(mode='reduce-overhead'), or torch.cuda.graph."),
        tensorflow("Fuse kernels: jit_compile=True (--compile)."),
    ),
}
_TF32 = "torch.backends.cuda.matmul.fp32_precision = 'tf32' (before 2.9: torch.set_float32_matmul_precision('high'))"
_HALF = "torch.autocast('cuda', dtype=torch.float16) with a GradScaler"


class SlowCompute:
    """Kernels on the critical path take longer than other kernels that would compute the same.

    The cause is one of: `fp32-matmul` (matrix products in fp32 without tensor cores), `layout-conversion` (convolutions
    convert between NCHW and NHWC), `eager-attention` (attention writes its scores to memory), `unfused-optimizer` (the
    update has a kernel per operation), `unfused-elementwise` (neighbouring kernels move the same tensor) and
    `small-kernels` (gaps between launch-sized kernels). Savings are estimated from the peaks of the device and the time
    of these kernels; the evidence has a low and a high estimate. The savings are simulated, because shorter kernels
    save nothing if the host sets the pace. But a host also saves the time of the operators that fused attention, a
    compiler or a fused optimizer replaces. Savings below 2 % of the step are not reported. One compiler can remove
    `unfused-elementwise`, `layout-conversion` and `eager-attention`; `savings_ms_compiled` states their savings
    together. `unfused-elementwise` and `small-kernels` are `info` at any size, because most eager programs have them.
    """

    code: ClassVar[str] = "slow-compute"
    title: ClassVar[str] = "Kernels are slower than they need to be"

    def examine(self, case: Case, what_if: WhatIf) -> Iterator[Proposal | CannotTell]:
        """Propose a step without the cause, for each cause whose removal saves 2 % or more."""
        kernels = graph_kernels(case, what_if)
        if kernels is None:
            return
        now_ms = what_if.now_ms
        # A scenario saves at most the time that it removes, so small removals need no simulation.
        candidates = [
            slow for slow in slow_kernels(case, kernels) if is_reported(_removed_ms(slow.expected, kernels), now_ms)
        ]
        corrected = what_if.corrected
        expected = what_if.savings_ms([slow.expected(what_if, corrected) for slow in candidates])
        reported = [
            (slow, saved_ms)
            for slow, saved_ms in zip(candidates, expected, strict=True)
            if is_reported(saved_ms, now_ms)
        ]
        together = _compiled_ms([slow for slow, _ in reported if slow.name in COMPILED], kernels)
        for slow, saved_ms in reported:
            if together is not None and slow.name in COMPILED:
                slow.evidence["savings_ms_compiled"] = together
            high_ms = max(_simulated_ms(slow.estimates[2], kernels), saved_ms)
            describe = partial(self._describe, case, kernels, slow, (_low_ms(slow, kernels, saved_ms), high_ms))
            yield Proposal(edit=slow.expected, describe=describe, kind="kernels")

    def _describe(  # noqa: PLR0917  # `partial` binds all but the last two
        self,
        case: Case,
        kernels: GraphKernels,
        slow: SlowKernels,
        low_high_ms: tuple[float, float],
        gain: float,
        percent: float,
    ) -> Finding:
        """Return the finding for savings of `gain` ms per step, which are `percent` of the step.

        `low_high_ms` are the low and the high estimate of the savings.
        """
        low_ms, high_ms = low_high_ms
        spread = f"{low_ms:.1f} to {high_ms:.1f}"
        precision = str(slow.evidence.get("precision", "tf32"))
        words = {"precision": precision, "setting": _TF32 if precision == "tf32" else _HALF}
        evidence: dict[str, object] = {
            "kernels_ms_per_step": kernels.ms_per_step(kernels.duration * slow.ops),
            "kernels_per_step": kernels.per_step(slow.ops),
            "savings_ms_low": low_ms,
            "savings_ms_high": high_ms,
            **slow.evidence,
        }
        modules = _modules(case, kernels, slow)
        if modules:
            evidence["modules_ms_per_step"] = modules
        return Finding(
            code=self.code,
            severity="info" if slow.name in BY_A_COMPILER else severity_of(percent),
            ranks=case.timeline.ranks_present,
            cause=slow.name,
            recoverable_ms_per_step=gain,
            recoverable_percent=percent,
            confidence="medium",
            title=f"{_WORDS[slow.name]}, which costs about {gain:.1f} ms per step ({spread})",
            place=f"in {next(iter(modules))}" if modules else "",
            evidence=evidence,
            advice=advice_for(case.timeline.framework, _ADVICE[slow.name], **words),
        )


def _compiled_ms(compiled: Sequence[SlowKernels], kernels: GraphKernels) -> float | None:
    """Return the savings of several causes together, in ms; None for fewer than two.

    The result is less than the sum of the causes' savings if the host sets the pace until one cause is removed.
    """
    if len(compiled) < 2:
        return None
    what_if = kernels.what_if
    scenario = what_if.corrected
    for slow in compiled:
        scenario = slow.expected(what_if, scenario)
    return what_if.saving_ms(scenario)


def _low_ms(slow: SlowKernels, kernels: GraphKernels, saved_ms: float) -> float:
    """Return the low estimate of the savings, in ms.

    The estimate is simulated if removing the cause removes host work. Otherwise `saved_ms`, the expected savings, is
    scaled by the removed time. Savings `BY_A_COMPILER` are always scaled, because most jobs have these causes, and a
    simulation takes 1 % of the time of the analysis.
    """
    expected, low, _ = slow.estimates
    if removed_host_ms(expected, kernels) and slow.name not in BY_A_COMPILER:
        return min(_simulated_ms(low, kernels), saved_ms)
    return saved_ms * min(_removed_ms(low, kernels) / _removed_ms(expected, kernels), 1.0)


def _removed_ms(shortening: Shortening, kernels: GraphKernels) -> float:
    """Return the removed time of devices and hosts, in ms per step, which limits the savings."""
    return removed_ms(shortening, kernels) + removed_host_ms(shortening, kernels)


def _simulated_ms(shortening: Shortening, kernels: GraphKernels) -> float:
    what_if = kernels.what_if
    return what_if.saving_ms(shortening(what_if, what_if.corrected))


def is_reported(saved_ms: float, step_ms: float) -> bool:
    """Return whether estimated savings are large enough to be reported."""
    return 100 * saved_ms >= ESTIMATED_PERCENT * step_ms > 0


def _modules(case: Case, kernels: GraphKernels, slow: SlowKernels) -> dict[str, float]:
    """Return module → ms per step of its slow kernels, largest first, on the first track whose modules are known."""
    graph = kernels.what_if.graph
    for index, track in enumerate(case.tracks):
        work = case.timeline.traces[track.trace].modules
        if work is None or not len(work.row):
            continue
        ops = np.flatnonzero(slow.ops & (graph.device.track == index))
        module_of_op = modules_of(work, kernels.operator[ops])
        known = module_of_op >= 0
        total = np.bincount(module_of_op[known], weights=kernels.duration[ops][known], minlength=len(work.modules))
        first = np.argsort(-total, kind="stable")[:_MOST_MODULES]
        return {
            ".".join(filter(None, (work.modules[module].root, work.modules[module].path))): float(total[module])
            / graph.steps
            / 1e6
            for module in first.tolist()
            if total[module] > 0
        }
    return {}
