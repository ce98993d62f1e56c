"""Define how a job divides its work among ranks (grid, pipeline, imbalance), as `analysis.json` states it."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from gpudiag.model.quantities import Bytes, Count, Milliseconds, Ordinal, Percentage, Rate

GroupRole = Literal["data", "shard", "tensor", "pipeline", "expert", "context", "unknown"]
ROLES: tuple[GroupRole, ...] = get_args(GroupRole)
Pass = Literal["forward", "backward", "both"]


class RoleTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Communication of all groups of one role, per step.

    Attributes:
        role: the role.
        operations: calls per step and rank, by operation.
        transfer_ms: exposed transfer, on the rank with the longest.
        wait_ms: exposed waiting for other ranks, on the rank that waits longest.
        hidden_ms: communication during compute, on the rank with the longest.
        size_bytes: bytes per step and rank; None if the size of any call is unknown.
    """

    role: GroupRole
    operations: dict[str, Rate]
    transfer_ms: Milliseconds
    wait_ms: Milliseconds
    hidden_ms: Milliseconds
    size_bytes: Bytes | None = None


class RankPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Position of a rank in the grid, and its work.

    Attributes:
        rank: global rank.
        position: index of the rank in its group, by role.
        compute_ms: compute per step.
        relative: `compute_ms` / mean `compute_ms` of the ranks of the same stage.
    """

    rank: Ordinal
    position: dict[GroupRole, Ordinal]
    compute_ms: Milliseconds
    relative: Rate


class PassOfStage(msgspec.Struct, frozen=True, kw_only=True):
    """Computation between two messages of one rank in the shown step: a microbatch's forward or backward pass.

    Attributes:
        rank, stage: the rank and its stage.
        direction: `both` if the trace does not show where the backward pass begins.
        microbatch: number of the microbatch, from 0. If the schedule is interleaved and its passes have no names, it is
            the number of the pass among this rank's passes of the same direction.
        chunk: index of the part of the model among the parts on this rank.
        start_ms, end_ms: time since the begin of the step's first pass.
    """

    rank: Ordinal
    stage: Ordinal
    direction: Pass
    microbatch: Ordinal
    chunk: Ordinal = 0
    start_ms: Milliseconds
    end_ms: Milliseconds


def theoretical_bubble_percent(stages: int, microbatches: int, chunks: int = 1) -> float:
    """Return the share of a step in percent in which each of p equal stages idles: (p - 1) / (v m + p - 1).

    m is the number of microbatches. v is the number of chunks (parts of the model) per rank: 1 unless interleaved.
    """
    return 100 * (stages - 1) / (chunks * microbatches + stages - 1)


class PipelineShape(msgspec.Struct, frozen=True, kw_only=True):
    """The pipeline of a job.

    Attributes:
        stages: number of stages (p).
        microbatches: number of microbatches per step (m).
        chunks: parts of the model per rank (v), above 1 if the schedule is interleaved.
        bubble_ms: idle time per step and stage that remains if all ranks and stages compute equally long and transfer
            in no time; None if it cannot be simulated.
        bubble_percent: `bubble_ms` as a share of the step.
        theoretical_percent: (p - 1) / (v m + p - 1).
        passes: the passes of one step.
    """

    stages: Count
    microbatches: Count
    chunks: Count = 1
    bubble_ms: Milliseconds | None = None
    bubble_percent: Percentage | None = None
    theoretical_percent: Percentage
    passes: tuple[PassOfStage, ...] = ()


class ImbalanceCause(msgspec.Struct, frozen=True, kw_only=True):
    """Effect of one cause of imbalance.

    Attributes:
        slowdown: simulated step time / simulated step time without this cause alone.
        saved_ms: difference of these two step times.
    """

    slowdown: Rate
    saved_ms: Milliseconds


class Imbalance(msgspec.Struct, frozen=True, kw_only=True):
    """Slowdown by operations that differ from their peers.

    Attributes:
        slowdown: simulated step time / `ideal_ms`. In the ideal step of a table of operations, each computation takes
            the mean and each transfer the median of its kind. In the ideal step of traces, each rank computes as long
            as the lower median of its peers, and each stage as long as the mean of the stages.
        ideal_ms: step time of the ideal step.
        by: effect of removing each cause alone (`rank`, `stage`, `sequence`, `experts`); effects may overlap.
    """

    slowdown: Rate
    ideal_ms: Milliseconds
    by: dict[str, ImbalanceCause]


class Parallelism(msgspec.Struct, frozen=True, kw_only=True):
    """How a job divides its work.

    Attributes:
        sizes: role → size of the grid, without roles of size 1.
        stated: whether descriptions of process groups state all roles; False if some are inferred from operations.
        traffic: communication by role.
        ranks: the position and work of all recorded ranks.
        pipeline: the pipeline; None if the job has no stages, or an unknown schedule.
        imbalance: the slowdown by imbalance; None if the steps cannot be simulated.
    """

    sizes: dict[GroupRole, Count]
    stated: bool
    traffic: tuple[RoleTraffic, ...] = ()
    ranks: tuple[RankPlace, ...] = ()
    pipeline: PipelineShape | None = None
    imbalance: Imbalance | None = None

    @property
    def words(self) -> str:
        """Return the grid in words, as in "pipeline 2, data 2"."""
        return ", ".join(f"{role} {size}" for role, size in self.sizes.items()) or "one rank"
