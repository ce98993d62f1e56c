"""Provide example machines on which rule `foreign-process` fires or is silent."""

from __future__ import annotations

from gpudiag.model.facts import Facts, GpuProcess
from tests.analysis.diagnosis.rule_examples.machines import gpu, machine

FIRES: tuple[tuple[str, Facts], ...] = (
    (
        "a second job uses one of two GPUs",
        machine(gpu(0), gpu(1, processes=(GpuProcess(pid=4711, name="python", memory_bytes=30 << 30),))),
    ),
    (
        "a desktop uses the GPU",
        machine(gpu(0, processes=(GpuProcess(pid=900, name="Xorg", memory_bytes=120 << 20),))),
    ),
)

SILENT: tuple[tuple[str, Facts], ...] = (
    ("no process", machine(gpu(0))),
    (
        "a job on a GPU that CUDA_VISIBLE_DEVICES hides",
        machine(gpu(0), gpu(1, visible=False, processes=(GpuProcess(pid=7, name="python", memory_bytes=30 << 30),))),
    ),
    ("gpudiag itself", machine(gpu(0, processes=(GpuProcess(pid=42, name="python", own=True),)))),
)
