"""Step times measured without the profiler, per rank, and beside them what recording cost."""

from __future__ import annotations

import msgspec

from gpudiag.model.quantities import Count, Milliseconds, Ordinal


class UnprofiledRank(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank's training thread did in the steps without profiler, as means in milliseconds over `steps` of them.

    Attributes:
        step_ms, input_ms: the step, and in it fetching the batch.
        host_ms: from having the batch to having put the step's work into the queue.
        lead_ms: by how much the thread was then ahead of its device.
        loader_ms: the shortest step that its loader's worker processes can make batches for.
        reasons: of each missing value why it is missing.
    """

    rank: Ordinal
    step_ms: Milliseconds
    input_ms: Milliseconds | None = None
    host_ms: Milliseconds
    lead_ms: Milliseconds | None = None
    loader_ms: Milliseconds | None = None
    steps: Count
    reasons: dict[str, str] = {}


class RecordingCost(msgspec.Struct, frozen=True, kw_only=True):
    """The mean step of the slowest rank in ms: timed, recorded lightly, recorded with operators; None if it was not."""

    unprofiled_ms: Milliseconds | None = None
    light_ms: Milliseconds | None = None
    full_ms: Milliseconds | None = None
