"""Test agreement of ranks through a real store; here each rank is a thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from torch import distributed

from gpudiag.training.frameworks.pytorch.runtime import job_store
from gpudiag.training.session.agreement import Agreement, PhaseDecision
from gpudiag.training.session.position import ClusterPosition

if TYPE_CHECKING:
    from collections.abc import Callable


dist: Any = distributed  # the stores are not in `__all__` of torch.distributed


def position(rank: int, world_size: int) -> ClusterPosition:
    return ClusterPosition(rank=rank, local_rank=rank, world_size=world_size, nodes=1, host="here", pid=1)


def together(world_size: int, task: Callable[[Agreement, int], object], *, timeout_s: float = 30) -> list[object]:
    """Call `task` with the agreement and the rank in one thread per rank; return the results by rank."""
    store = dist.HashStore()
    with ThreadPoolExecutor(world_size) as pool:
        futures = [
            pool.submit(task, Agreement(position(rank, world_size), store, timeout_s=timeout_s), rank)
            for rank in range(world_size)
        ]
        return [future.result(60) for future in futures]


def longest(posted: list[list[float]]) -> PhaseDecision:
    return PhaseDecision(converged=True, unprofiled_steps=int(max(max(step_ms) for step_ms in posted)))


def test_every_rank_gets_rank_0s_decision() -> None:
    def task(agreement: Agreement, rank: int) -> list[int]:
        return [agreement.decide([float(rank + 10 * turn)], longest).unprofiled_steps for turn in range(3)]

    assert together(4, task) == [[3, 13, 23]] * 4


def test_peers_do_not_wait_for_rank_whose_loop_has_ended() -> None:
    def task(agreement: Agreement, rank: int) -> bool:
        agreement.decide([1.0], longest)
        if rank == 2:
            agreement.leave()
            return True
        return agreement.decide([1.0], longest).ended

    assert together(4, task) == [True] * 4


def test_peers_do_not_wait_for_rank_0_whose_loop_has_ended() -> None:
    def task(agreement: Agreement, rank: int) -> bool:
        agreement.decide([1.0], longest)
        if rank == 0:
            agreement.leave()
            return True
        return agreement.decide([1.0], longest).ended

    assert together(3, task) == [True] * 3


def test_wait_for_absent_rank_ends_at_timeout() -> None:
    def task(agreement: Agreement, rank: int) -> str:
        if rank == 1:
            return "absent"
        try:
            agreement.decide([1.0], longest)
        except TimeoutError:
            return "gave up"
        return "agreed"

    assert together(2, task, timeout_s=0.2) == ["gave up", "absent"]


def test_rank_0_waits_until_all_ranks_leave() -> None:
    def task(agreement: Agreement, rank: int) -> bool:
        agreement.leave()
        return rank != 0 or agreement.wait_for_all(timeout_s=10)

    assert all(together(3, task))
    alone = Agreement(position(0, 2), dist.HashStore(), timeout_s=1)
    alone.leave()
    assert not alone.wait_for_all(timeout_s=0.1)


def test_single_process_needs_no_store() -> None:
    assert job_store(position(0, 1)) is None
    agreement = Agreement(position(0, 1), None, timeout_s=1)
    assert agreement.decide([5.0], longest).unprofiled_steps == 5
    agreement.leave()
    assert agreement.wait_for_all(timeout_s=0)


def test_several_processes_without_process_group_raise_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    with pytest.raises(RuntimeError, match="init_process_group"):
        job_store(position(0, 2))
