"""Test which strategies are candidates on a machine, and the reasons for excluding strategies."""

from __future__ import annotations

import msgspec
import pytest

from gpudiag.app.recommend.candidates import candidates, check_possible, why_not
from gpudiag.errors import HardwareMissingError
from tests.probed_machine import four_h200


def test_small_dev_shm_excludes_no_candidate() -> None:
    """Docker limits /dev/shm to 64 MB, but the processes' shared memory is anonymous and not in /dev/shm."""
    facts = four_h200()
    small = msgspec.structs.replace(facts, host=msgspec.structs.replace(facts.host, shm_free_bytes=1 << 20))
    assert why_not(small, candidates(), 4) == {}


def test_forbidden_locked_memory_is_refused_with_a_hint() -> None:
    facts = four_h200()
    banned = msgspec.structs.replace(facts, host=msgspec.structs.replace(facts.host, memlock_bytes=0))
    refused = why_not(banned, candidates(), 4)
    assert set(refused) == {"cpu-reduce", "cpu-reduce --compress bf16", "ps-cpu"}
    assert all("ulimit -l" in reason for reason in refused.values())


def test_one_device_or_no_possible_candidate_is_refused_before_measuring() -> None:
    facts = four_h200()
    with pytest.raises(HardwareMissingError, match="one device does not communicate") as caught:
        check_possible(candidates(), why_not(facts, candidates(), 1), 1)
    assert "independent" in caught.value.hint
    without = msgspec.structs.replace(facts, gpus=[])
    chosen = tuple(candidate for candidate in candidates() if candidate.strategy in {"nccl", "independent"})
    with pytest.raises(HardwareMissingError, match="nccl: it needs GPUs"):
        check_possible(chosen, why_not(without, chosen, 2), 2)
