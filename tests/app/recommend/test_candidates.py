"""What comes into question on a machine, and what is said of the rest."""

from __future__ import annotations

import msgspec
import pytest

from gpudiag.app.recommend.candidates import candidates, check_possible, why_not
from gpudiag.errors import HardwareMissingError
from tests.probed_machine import four_h200


def test_a_small_dev_shm_keeps_nothing_from_running() -> None:
    """Docker gives 64 MB; what the processes share has no name there and is not bounded by it."""
    facts = four_h200()
    small = msgspec.structs.replace(facts, host=msgspec.structs.replace(facts.host, shm_free_bytes=1 << 20))
    assert why_not(small, candidates(), 4) == {}


def test_a_ban_on_locked_memory_is_said_with_a_remedy() -> None:
    facts = four_h200()
    banned = msgspec.structs.replace(facts, host=msgspec.structs.replace(facts.host, memlock_bytes=0))
    refused = why_not(banned, candidates(), 4)
    assert set(refused) == {"cpu-reduce", "cpu-reduce --compress bf16", "ps-cpu"}
    assert all("ulimit -l" in reason for reason in refused.values())


def test_one_device_and_nothing_possible_are_said_beforehand() -> None:
    facts = four_h200()
    with pytest.raises(HardwareMissingError, match="one device exchanges nothing") as caught:
        check_possible(candidates(), why_not(facts, candidates(), 1), 1)
    assert "independent" in caught.value.hint
    without = msgspec.structs.replace(facts, gpus=[])
    chosen = tuple(one for one in candidates() if one.strategy in {"nccl", "independent"})
    with pytest.raises(HardwareMissingError, match="nccl: it needs GPUs"):
        check_possible(chosen, why_not(without, chosen, 2), 2)
