"""`foreign-process`: somebody else holds the GPU."""

from __future__ import annotations

from typing import ClassVar

from gpudiag.analysis.diagnosis.calibration import CONTEXT_BYTES
from gpudiag.analysis.diagnosis.hardware.rule import NO_TRACE
from gpudiag.analysis.diagnosis.hardware.words import gpu_list
from gpudiag.model.analysis import Finding
from gpudiag.model.facts import Facts, GpuProcess

_DISPLAY = ("xorg", "xwayland", "gnome-shell", "kwin", "plasmashell", "gdm", "sddm", "lightdm", "mutter", "weston")


class ForeignProcess:
    """A process that is neither gpudiag's nor the job's holds memory on a GPU, and may compute on it.

    Two jobs on one GPU take turns: each gets a part of its time, and a copy or a collective of one waits for kernels
    of the other. Figures measured meanwhile are too low, and in training all other ranks wait for the shared GPU.

    What to do: find the process (`ps -fp PID`), let it end or end it, or choose other GPUs with CUDA_VISIBLE_DEVICES.
    A desktop's own display server is reported as `info`: it costs little.
    """

    code: ClassVar[str] = "foreign-process"

    def examine(self, facts: Facts) -> tuple[Finding, ...]:
        """One finding for jobs, one for what is small or belongs to the desktop."""
        heavy: list[tuple[int, GpuProcess]] = []
        light: list[tuple[int, GpuProcess]] = []
        for one in facts.gpus:
            for process in one.processes:
                if process.own:
                    continue
                display = (process.name or "").lower().startswith(_DISPLAY)
                small = process.memory_bytes is not None and process.memory_bytes < CONTEXT_BYTES
                (light if display or small else heavy).append((one.index, process))
        return tuple(_finding(holders, heavy=holders is heavy) for holders in (heavy, light) if holders)


def _finding(holders: list[tuple[int, GpuProcess]], *, heavy: bool) -> Finding:
    indices = sorted({index for index, _ in holders})
    distinct = {process.pid: process for _, process in holders}
    named = ", ".join(f"{process.name or 'unnamed'} (pid {pid})" for pid, process in list(distinct.items())[:4])
    more = f" and {len(distinct) - 4} more" if len(distinct) > 4 else ""
    pids = ",".join(map(str, sorted(distinct)))
    cost = "it takes turns with your job, and every other rank waits" if heavy else "this usually costs little"
    known = all(process.memory_bytes is not None for _, process in holders)
    return Finding(
        code=ForeignProcess.code,
        severity="warning" if heavy else "info",
        cause="other-job" if heavy else "small",
        confidence="high" if known or not heavy else "medium",
        title=f"{gpu_list(indices)} {'is' if len(indices) == 1 else 'are'} also held by {named}{more}: {cost}",
        evidence={
            "gpus": indices,
            "processes": [
                {"gpu": index, "pid": process.pid, "name": process.name, "memory_bytes": process.memory_bytes}
                for index, process in holders
            ],
            "reason": NO_TRACE,
        },
        advice=(
            f"See who it is: `ps -fp {pids}` (on the host, if this is a container).",
            f"End it, wait for it, or leave {gpu_list(indices)} out with CUDA_VISIBLE_DEVICES.",
            "Measure again afterwards: figures taken beside another job are too low.",
        ),
    )
