"""ParallelLayout: how the processes of a job divide a model, its batches and its sequences."""

from __future__ import annotations

import math
from typing import Literal, get_args

from gpudiag.model.quantities import Count, Devices
from gpudiag.model.structs import msgspec

PipelineSchedule = Literal["gpipe", "1f1b", "interleaved"]

#: Mesh dimensions from the outermost to the innermost, whose ranks are neighbours.
DIMENSIONS = ("pp", "dp", "ep", "cp", "tp")
SCHEDULES: tuple[PipelineSchedule, ...] = get_args(PipelineSchedule)


class ParallelLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the dimensions of parallelism; their product is the number of processes.

    Attributes:
        pp: pipeline stages, or groups of them if the schedule is interleaved.
        dp: replicas of the model, with different batches.
        ep: processes that share the experts of each layer; each has its own batches, as in `dp`.
        cp: parts of each sequence.
        tp: parts of each layer's matrices.
        microbatches: parts of a replica's batch that follow each other through the pipeline.
        schedule: order of forward and backward of microbatches on each stage.
    """

    pp: Devices = 1
    dp: Devices = 1
    ep: Devices = 1
    cp: Devices = 1
    tp: Devices = 1
    microbatches: Count = 1
    schedule: PipelineSchedule = "1f1b"

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes by dimension, in the order of the mesh."""
        return {name: getattr(self, name) for name in DIMENSIONS}

    @property
    def processes(self) -> int:
        """The number of processes."""
        return math.prod(self.sizes.values())

    def __str__(self) -> str:
        """Return the layout as the option's text."""
        words = [f"{name}={size}" for name, size in self.sizes.items() if size > 1]
        if self.pp > 1:
            words += [f"microbatches={self.microbatches}", f"schedule={self.schedule}"]
        return ",".join(words) or "dp=1"
