"""InferenceRecord: how fast a volume was predicted and written (`inference.json`, `gpudiag/inference/1`)."""

from __future__ import annotations

from gpudiag.model.quantities import Count, Ordinal, Rate, Seconds
from gpudiag.model.structs import msgspec

INFERENCE_SCHEMA = "gpudiag/inference/1"
INFERENCE_FILE = "inference.json"


class RankInference(msgspec.Struct, frozen=True, kw_only=True):
    """One process's part: `seconds` from the common start until its last block was on disk."""

    rank: Ordinal
    blocks: Count
    voxels: Count
    seconds: Seconds


class InferenceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One volume, predicted in blocks by all processes together, without the profiler.

    Attributes:
        volume: its voxels along z, y and x.
        written: voxels that a block writes at most.
        seen: voxels that the network sees per block: `written` and its surroundings.
        voxels: voxels written, each once; equal to the volume's.
        predicted: voxels that went through the network: surroundings count each time they are seen.
        channels: values written per voxel, one byte each.
        seconds: from the common start until every process had its last block on disk.
        mvox_per_s: `voxels` / `seconds` / 1e6.
    """

    schema: str = INFERENCE_SCHEMA
    volume: tuple[Count, Count, Count]
    written: tuple[Count, Count, Count]
    seen: tuple[Count, Count, Count]
    blocks: Count
    voxels: Count
    predicted: Count
    channels: Count
    seconds: Seconds
    mvox_per_s: Rate
    ranks: tuple[RankInference, ...]
