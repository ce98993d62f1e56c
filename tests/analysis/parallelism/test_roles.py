"""Test the roles of process groups."""

from __future__ import annotations

from collections import Counter

import pytest

from gpudiag.analysis.parallelism.roles import described_role, role_in_use
from gpudiag.model.parallelism import GroupRole


@pytest.mark.parametrize(
    ("description", "role"),
    [
        ("mesh_pp", "pipeline"),
        ("mesh_dp", "data"),
        ("mesh_dp_replicate", "data"),
        ("mesh_dp_shard", "shard"),
        ("mesh_dp_shard_cp", "shard"),
        ("mesh_dp_cp", "data"),
        ("mesh_tp", "tensor"),
        ("mesh_cp", "context"),
        ("mesh_ep", "expert"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tensor"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pipeline"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "data"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "expert"),
        ("EXPERT_DATA_PARALLEL_GROUP", "data"),
        ("default_pg", None),
        ("", None),
    ],
)
def test_role_is_read_from_the_description_of_a_group(description: str, role: GroupRole | None) -> None:
    assert described_role(description) == role


@pytest.mark.parametrize(
    ("described", "operations", "role"),
    [
        (None, {"send": 4, "recv": 4}, "pipeline"),
        (None, {"all_to_all": 8, "all_reduce": 2}, "expert"),
        (None, {"all_gather": 8, "reduce_scatter": 8}, "shard"),
        (None, {"all_reduce": 2}, "data"),
        (None, {"broadcast": 2}, "unknown"),
        ("data", {"all_gather": 8, "reduce_scatter": 8}, "shard"),
        ("data", {"all_reduce": 2}, "data"),
        ("tensor", {"all_gather": 8}, "tensor"),
    ],
)
def test_traffic_tells_roles_that_no_description_states(
    described: GroupRole | None, operations: dict[str, int], role: GroupRole
) -> None:
    assert role_in_use(described, Counter(operations)) == role
