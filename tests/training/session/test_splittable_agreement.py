"""Test timeouts and decisions of ranks that disagree, with a store in memory and threads."""

from __future__ import annotations

import threading
import time

import pytest

from gpudiag.training.session import agreement as agreement_module
from gpudiag.training.session.agreement import PhaseDecision, SplittableAgreement
from gpudiag.training.session.position import ClusterPosition


class Store(dict[str, str]):
    """A store with the interface of a process group's store."""

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


class LostStore(Store):
    """A store whose host has ended."""

    def set(self, key: str, value: str) -> None:
        raise RuntimeError("connection reset")


def rank(number: int, store: Store, of: int = 2) -> SplittableAgreement:
    position = ClusterPosition(rank=number, local_rank=number, world_size=of, nodes=1, host="h", pid=number)
    return SplittableAgreement(position, store, timeout_s=600.0, run_id="id")


def judge(posted: list[list[float]]) -> PhaseDecision:
    return PhaseDecision(unprofiled_steps=len(posted))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement_module, "_MAX_WAIT_S", 0.2)


def test_ranks_at_the_same_step_decide_together() -> None:
    store = Store()
    verdicts: dict[int, PhaseDecision] = {}
    agreements = [rank(0, store), rank(1, store)]

    def decide(number: int) -> None:
        verdicts[number] = agreements[number].decide([1.0], judge)

    threads = [threading.Thread(target=decide, args=(number,)) for number in (1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts[0] == verdicts[1] == PhaseDecision(unprofiled_steps=2, run_id="id")
    assert not any(agreement.split for agreement in agreements)


@pytest.mark.parametrize("number", [0, 1])
def test_rank_that_waited_in_vain_decides_alone_from_then_on(number: int) -> None:
    agreement = rank(number, Store())
    begun_s = time.monotonic()
    first = agreement.decide([1.0], judge)
    waited_s = time.monotonic() - begun_s
    for _ in range(50):
        agreement.decide([1.0], judge)
    assert agreement.split
    assert time.monotonic() - begun_s < 2 * waited_s
    # Rank 0 uses its own times for the other rank too, and rank 1 decides with its own times only.
    assert first.unprofiled_steps == (2 if number == 0 else 1)


def test_late_rank_splits_without_waiting() -> None:
    store = Store()
    late, early = rank(0, store), rank(1, store)
    early.decide_alone()
    begun_s = time.monotonic()
    assert late.decide([1.0], judge).unprofiled_steps == 2
    assert late.split
    assert time.monotonic() - begun_s < 0.2, "the late rank waited"


def test_rank_decides_alone_when_peer_has_ended_or_store_is_lost() -> None:
    store = Store()
    rank(1, store).leave()
    assert rank(0, store).decide([1.0], judge).ended is False
    assert rank(1, LostStore()).decide([1.0], judge) == PhaseDecision(unprofiled_steps=1)
