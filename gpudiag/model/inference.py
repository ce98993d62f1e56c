"""InferenceRecord: how fast a volume was predicted and written (`inference.json`, `gpudiag/inference/1`)."""

from __future__ import annotations

import msgspec

INFERENCE_SCHEMA = "gpudiag/inference/1"
INFERENCE_FILE = "inference.json"


class RankInference(msgspec.Struct, frozen=True, kw_only=True):
    """One process's part: `seconds` from the common start until its last block was on disk."""

    rank: int
    blocks: int
    voxels: int
    seconds: float


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
    volume: tuple[int, int, int]
    written: tuple[int, int, int]
    seen: tuple[int, int, int]
    blocks: int
    voxels: int
    predicted: int
    channels: int
    seconds: float
    mvox_per_s: float
    ranks: tuple[RankInference, ...]
