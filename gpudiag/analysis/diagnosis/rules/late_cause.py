"""Find why a rank is late: the component of its step that explains the loss of all ranks."""

from __future__ import annotations

import statistics

from gpudiag.analysis.diagnosis.calibration import MOST
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.places import few_slow_calls
from gpudiag.analysis.diagnosis.rules.advice import TF_DATA, Advice, others, pytorch, tensorflow
from gpudiag.analysis.diagnosis.rules.host_stall import ELSEWHERE
from gpudiag.analysis.diagnosis.rules.more_than_peers import OwnPauses, own_pauses
from gpudiag.analysis.diagnosis.rules.rule import notable
from gpudiag.analysis.diagnosis.simulation.components import COMPONENTS, Component, equalized
from gpudiag.analysis.diagnosis.simulation.components import excess as excess_of
from gpudiag.analysis.diagnosis.simulation.scenario import Scenario
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.units import milliseconds

#: Most of a host's work: a host that is slow throughout is slowest in one of these parts.
_THROUGHOUT: tuple[Component, ...] = ("launch", "operators")
#: Causes for a host that may pause often, but each time too briefly to count as untraced.
_MAYBE_ELSEWHERE = frozenset({"launch", "unknown"})

CAUSE_ADVICE: dict[str, Advice] = {
    "input": (
        TF_DATA,
        (
            "Find out why the loader of {ranks} is slower: its files, disk or network mount, its CPU "
            "cores, its share of the data."
        ),
        pytorch(
            "Give it more workers and a deeper prefetch: DataLoader(num_workers=…, prefetch_factor=4, "
            "persistent_workers=True).",
        ),
        (
            "If its samples are larger than the others' (sequence lengths, images), distribute by size "
            "(bucketing) instead."
        ),
    ),
    "compute": (
        "Compare clocks, power and temperature of the GPU of {ranks} with its peers: `gpudiag topology`.",
        "Look for more work on {ranks}: batch size, sequence lengths, evaluation or logging that others do not do.",
    ),
    "clock": (
        "Let the GPU of {ranks} run at its peers' clocks: see the finding about it (clock-mismatch, throttled).",
        "Until then set the same clocks on all GPUs (nvidia-smi -lgc), or leave that GPU out, and compare.",
    ),
    "launch": (
        tensorflow("Give its process CPU cores of its own, near the GPU (numactl, taskset)."),
        pytorch(
            "Give {ranks} separate CPU cores, near the GPU (numactl, taskset, torchrun --numa-binding) "
            "and look for other processes there.",
        ),
        others("Give {ranks} separate CPU cores, near the GPU (numactl, taskset)."),
        "Look for extra Python in the loop of {ranks}: logging, checkpoints, metrics on one rank only.",
    ),
    "copy": (
        tensorflow("Check the PCIe link of its GPU: `gpudiag bandwidth`."),
        others("Check the PCIe link of the GPU of {ranks}: `gpudiag bandwidth`."),
        pytorch("Pin the host memory of {ranks} (pin_memory=True) and check its PCIe link: `gpudiag bandwidth`."),
    ),
    "stall": ELSEWHERE,
    "sync": (
        pytorch(
            "Find what only {ranks} reads back from the GPU: .item(), .cpu(), losses that are logged, checkpoints."
        ),
        tensorflow("Find what only {ranks} reads back from the GPU: .numpy(), losses that are logged, checkpoints."),
        others("Find what only {ranks} reads back from the GPU: losses that are logged, checkpoints."),
        "Do it every N steps, or read sums that were kept on the device.",
    ),
    "operators": ("Give these calls the same shapes on {ranks} as on the others, and the same ones each step.",),
    "unknown": ("Compare {ranks} with the others in the table of ranks: what takes longer there?",),
}

JITTER_ADVICE = (
    (
        "Look for what happens now and then on {whom}: garbage collection (gc.collect() every N steps on "
        "all ranks at once instead), samples of uneven size, logging, other processes on the same CPU cores."
    ),
    "Let hosts run ahead, so that they absorb it: fewer synchronizations per step, a deeper prefetch of the loader.",
)

CPU_ADVICE = (
    "Look for more work on {ranks}: batch size, sequence lengths, evaluation or logging that others do not do.",
    (
        "Look for other processes on the CPU cores of {ranks}, and give each rank its own (numactl, taskset, "
        "OMP_NUM_THREADS)."
    ),
)
OWN_WORK: Advice = (
    (
        "Look for what makes {ranks} call {names} more often than the others: logging, metrics, evaluation, weights "
        "that are averaged or saved."
    ),
    "Do it every N steps, or share it among the ranks.",
)


def cause_of(case: Case, what_if: WhatIf, gain: float, jitter: bool) -> tuple[str, dict[str, float]]:
    """Return the part that explains the savings, and what each part alone saves.

    A part explains the savings if it alone saves most of them, or if most of them are lost without it: if a rank
    computes 15 ms too long and another's host is the next to set the pace, compute alone saves less than half. If no
    part explains them, the cause may be a host that lost its core and is slow in launching, calls and pauses together.

    A part in which ranks hardly differ explains nothing: kernels take longer beside collectives that wait for a late
    rank, so that equalizing them saves something. The only part in which they differ explains all.
    """

    def level_in(*parts: Component) -> Scenario:
        return equalized(what_if, what_if.corrected, parts, each_step=jitter)

    alone: dict[Component, float] = dict(
        zip(COMPONENTS, what_if.savings_ms([level_in(part) for part in COMPONENTS]), strict=True)
    )
    differ = [part for part in COMPONENTS if _differ(what_if, part, jitter)] or list(COMPONENTS)
    best = max(differ, key=lambda part: alone[part])
    explains = alone[best] >= MOST * gain or len(differ) == 1
    if not explains:
        others = what_if.saving_ms(level_in(*(part for part in COMPONENTS if part != best)))
        explains = gain - others >= MOST * gain
    if not explains and best in _THROUGHOUT:
        explains = what_if.saving_ms(level_in(*_THROUGHOUT, "stall")) >= MOST * gain
        best = "launch"
    if best == "operators" and not few_slow_calls(case, tuple(what_if.graph.ranks.values())):
        best = "launch"  # a host that sometimes loses its core is slow in any code that it runs at that time
    return (best if explains else "unknown"), {str(part): ms for part, ms in alone.items()}


def _differ(what_if: WhatIf, part: Component, each_step: bool) -> bool:
    """Return whether some rank notably exceeds its peers in this part, in each step or on average."""
    excess = excess_of(what_if, part)
    by_step = zip(*excess.by_step.values(), strict=True)
    most = statistics.fmean(max(ranks) for ranks in by_step) if each_step else max(excess.by_rank.values())
    return notable(milliseconds(most), what_if.corrected_ms)


def stall_by_own_pauses(case: Case, late: tuple[int, ...], cause: str, gain: float) -> tuple[str, OwnPauses]:
    """Return ("stall", its pauses) if a host that launches slowly pauses by itself, else the cause as it is.

    Each pause may be short enough for Python between calls, but the peers do not make these calls.
    """
    if gain and cause in _MAYBE_ELSEWHERE:
        pauses = own_pauses(case, late)
        if pauses.total_ms >= MOST * gain:
            return "stall", pauses
    return cause, OwnPauses(ms={})
