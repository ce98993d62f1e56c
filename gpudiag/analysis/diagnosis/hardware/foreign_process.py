"""`foreign-process`: another program uses the GPU."""

from __future__ import annotations

from typing import ClassVar

from gpudiag.analysis.diagnosis.calibration import CONTEXT_BYTES
from gpudiag.analysis.diagnosis.hardware.rule import first_four, gpu_list
from gpudiag.model.analysis import Finding
from gpudiag.model.facts import Facts, GpuProcess

_DISPLAY = ("xorg", "xwayland", "gnome-shell", "kwin", "plasmashell", "gdm", "sddm", "lightdm", "mutter", "weston")


class ForeignProcess:
    """A process that belongs neither to gpudiag nor to the job holds memory on a GPU, and may compute on the GPU.

    Two jobs on one GPU share its time, and a copy or a collective of one job waits for kernels of the other. Bandwidths
    measured at the same time are too low, and in training all other ranks wait for the shared GPU. GPUs that
    CUDA_VISIBLE_DEVICES hides are left out.

    What to do: find the process (`ps -fp PID`), wait for its end or end it, or choose other GPUs with
    CUDA_VISIBLE_DEVICES. A desktop's display server is reported as `info`, because it costs little.
    """

    code: ClassVar[str] = "foreign-process"

    def examine(self, facts: Facts) -> tuple[Finding, ...]:
        """Return one finding for large processes, and one for small processes and display servers."""
        heavy: list[tuple[int, GpuProcess]] = []
        light: list[tuple[int, GpuProcess]] = []
        for gpu in facts.gpus:
            if not gpu.visible:
                continue
            for process in gpu.processes:
                if process.own:
                    continue
                display = (process.name or "").lower().startswith(_DISPLAY)
                small = process.memory_bytes is not None and process.memory_bytes < CONTEXT_BYTES
                (light if display or small else heavy).append((gpu.index, process))
        return tuple(_finding(holders, heavy=holders is heavy) for holders in (heavy, light) if holders)


def _finding(holders: list[tuple[int, GpuProcess]], *, heavy: bool) -> Finding:
    """Return the finding about processes, each with the index of its GPU; `heavy` processes cost step time."""
    indices = sorted({index for index, _ in holders})
    distinct = {process.pid: process for _, process in holders}
    names = first_four([f"{process.name or 'unnamed'} (pid {pid})" for pid, process in distinct.items()])
    cost = "it shares the GPU with your job, and every other rank waits" if heavy else "this usually costs little"
    memory_known = all(process.memory_bytes is not None for _, process in holders)
    return Finding(
        code=ForeignProcess.code,
        severity="warning" if heavy else "info",
        cause="other-job" if heavy else "small",
        confidence="high" if memory_known or not heavy else "medium",  # unknown memory counts as large
        title=f"{gpu_list(indices)} {'is' if len(indices) == 1 else 'are'} also used by {names}: {cost}",
        evidence={
            "gpus": indices,
            "processes": [
                {"gpu": index, "pid": process.pid, "name": process.name, "memory_bytes": process.memory_bytes}
                for index, process in holders
            ],
        },
        advice=(
            f"See whose it is: `ps -fp {','.join(map(str, sorted(distinct)))}` (on the host, if this is a container).",
            f"End it, wait for it, or leave {gpu_list(indices)} out with CUDA_VISIBLE_DEVICES.",
            "Measure again afterwards: bandwidths measured beside another job are too low.",
        ),
    )
