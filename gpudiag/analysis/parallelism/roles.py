"""Find the role of a process group from its description, or else from its operations."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpudiag.model.event import POINT_TO_POINT
from gpudiag.model.parallelism import GroupRole

#: Words of descriptions (PyTorch's meshes, torchtitan, Megatron-LM, DeepSpeed) by role.
_WORDS: dict[GroupRole, frozenset[str]] = {
    "pipeline": frozenset({"pp", "pipe", "pipeline", "stage", "stages"}),
    "data": frozenset({"dp", "ddp", "data", "replicate", "replica", "batch"}),
    "shard": frozenset({"fsdp", "shard", "zero"}),
    "tensor": frozenset({"tp", "tensor"}),
    "context": frozenset({"cp", "context", "sp", "sequence", "ulysses", "ring"}),
    "expert": frozenset({"ep", "expert", "experts", "moe"}),
}


def words_of(description: str) -> dict[GroupRole, int]:
    """Return the roles that a description names, each with the number of its words; empty if it names none."""
    words = re.split(r"[^a-z]+", description.lower())
    counts = {role: sum(word in known for word in words) for role, known in _WORDS.items()}
    return {role: count for role, count in counts.items() if count}


def described_role(description: str) -> GroupRole | None:
    """Return the role that a description states; None if it states none.

    The ranks of a group with several roles, such as `mesh_dp_cp` or Megatron-LM's `DATA_PARALLEL_GROUP_WITH_CP`, hold
    replicas of the model, so that `data` counts before `context`.
    """
    named = words_of(description)
    for role in ("pipeline", "shard", "data"):
        if role in named:
            return role
    return next(iter(named), None)


def role_of_traffic(operations: Mapping[str, int]) -> GroupRole:
    """Return the role of a group without a description, from its number of calls by operation; it may be `unknown`.

    Operations that fewer roles use are tested first.
    """
    if operations.get("all_to_all"):
        return "expert"
    if any(operations.get(operation) for operation in POINT_TO_POINT):
        return "pipeline"
    if operations.get("all_gather"):
        return "shard"
    return "data" if operations.get("all_reduce") or operations.get("reduce_scatter") else "unknown"


def role_in_use(described: GroupRole | None, operations: Mapping[str, int]) -> GroupRole:
    """Return the described role, but `shard` for a `data` group that gathers; without a description, use the calls."""
    if described is None:
        return role_of_traffic(operations)
    return "shard" if described == "data" and operations.get("all_gather") else described
