"""Test the step at which all ranks begin, and the overhead of checking for a rank that never arrives."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudiag.training.attach import attachment
from gpudiag.training.attach.boundaries import Boundaries, OptimizerCall, StartBarrier, StartStep
from gpudiag.training.attach.command_process import Settings
from gpudiag.training.attach.entered import EnteredProcess
from gpudiag.training.session.position import ClusterPosition

#: FIRST checks occur at consecutive steps. After these, training must take at least TIMES times as long as checks.
FIRST, TIMES = 10, 500
POSITION = ClusterPosition(rank=0, local_rank=0, world_size=2, nodes=1, host="here", pid=1)


class Store:
    """A job's store that calls `before` before it answers."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.values: dict[str, bytes] = {}
        self._before = before

    def set(self, key: str, value: str) -> None:
        self._before()
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        self._before()
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        self._before()
        return all(key in self.values for key in keys)


class Job:
    """Simulate three ranks in lockstep: no rank ends a step before the others have ended the previous step.

    Rank 1 takes its first step after the other ranks have taken `late` steps, and then catches up. While one rank waits
    for the store's answer, any other rank may take a step and check. `seed` determines the order and the delay of
    answers.
    """

    def __init__(self, seed: int, late: int) -> None:
        self._random, self._late = Random(seed), late  # noqa: S311 # not security
        self._slow = self._random.choice((1.0, 10.0))  # factor of the store's delays
        self._now_s = 0.0
        self._store = Store(self._answer)
        self._ranks: dict[int, StartBarrier] = {}
        self._steps = [0, 0, 0]
        self._looking: set[int] = set()  # ranks that wait for the store's answer
        self.started: dict[int, StartStep] = {}

    def run(self) -> None:
        while len(self.started) < 3:
            self._step(self._random.randrange(3))

    def _answer(self) -> None:
        self._now_s += self._slow * self._random.choice((2e-5, 4e-5, 5e-5, 1e-3))
        if self._random.random() < 0.5:
            self._step(self._random.randrange(3))

    def _may_step(self, rank: int) -> bool:
        """Return whether a rank may take its next step now, by the rules in the class's docstring."""
        if rank in self._looking or rank in self.started:
            return False
        ended = self._steps[rank]
        others = [steps for other, steps in enumerate(self._steps) if other != rank]
        if self._steps[1] >= self._late:
            return ended <= min(others)
        if rank == 1:
            return min(others) == self._late
        return ended < self._late and ended <= self._steps[2 - rank]  # compared with the other of ranks 0 and 2

    def _step(self, rank: int) -> None:
        """Take a rank's next step and check the barrier, if the rank may step."""
        if not self._may_step(rank):
            return
        self._looking.add(rank)
        self._now_s += 5e-4
        self._steps[rank] += 1
        step = self._steps[rank]
        if rank not in self._ranks:
            self._ranks[rank] = StartBarrier(
                rank=rank, world_size=3, store=self._store, own_profiler=False, clock=lambda: self._now_s
            )
        decision = self._ranks[rank].check(step)
        if decision is not None and step >= decision.step:
            assert step == decision.step, f"rank {rank} knew too late"
            self.started[rank] = decision
        self._looking.remove(rank)


@settings(max_examples=60)
@given(st.integers(0, 10**9), st.one_of(st.just(0), st.integers(1, 300)))
def test_all_ranks_begin_at_one_step(seed: int, late: int) -> None:
    job = Job(seed, late)
    job.run()
    assert len({start.step for start in job.started.values()}) == 1
    if not late:
        assert job.started[0].step < FIRST, "ranks that arrive early enough do not wait"


@given(st.integers(0, 10**9), st.sampled_from((0, 1)), st.sampled_from((3e-4, 1.5e-3, 0.2)))
def test_checks_for_absent_rank_keep_their_budget(seed: int, rank: int, step_s: float) -> None:
    """The budget (1/TIMES of the time) excludes the first checks, and the last three, which too few steps follow."""
    random, now_s = Random(seed), 0.0  # noqa: S311 # not security
    slow = random.choice((1.0, 20.0, 500.0))

    def answer() -> None:
        nonlocal now_s
        now_s += slow * random.choice((2e-5, 4e-5, 5e-5, 1e-3))

    call = StartBarrier(rank=rank, world_size=3, store=Store(answer), own_profiler=False, clock=lambda: now_s)
    looks: list[float] = []
    since_s = 0.0
    for step in range(1, 3000):
        now_s += step_s
        begun_s = now_s
        assert call.check(step) is None
        if now_s > begun_s:
            looks.append(now_s - begun_s)
            since_s = now_s if len(looks) == FIRST else since_s
            assert sum(looks[FIRST:-3]) <= (now_s - since_s) / TIMES
    assert len(looks) >= FIRST


def test_profiler_of_one_rank_stops_recording_on_all() -> None:
    store = Store()
    ranks = [StartBarrier(rank=rank, world_size=2, store=store, own_profiler=rank == 1) for rank in range(2)]
    decisions = [call.check(step) for step in range(1, FIRST) for call in ranks]
    assert {start.recorded for start in decisions if start is not None} == {False}


def test_single_process_begins_at_once() -> None:
    assert StartBarrier(rank=0, world_size=1, store=None, own_profiler=False).check(5) == StartStep(5, recorded=True)


@pytest.mark.parametrize("loop", [".A", ".A.A.A.B", ".AB", ".AA.BB", "*"])
def test_quietly_counted_steps_match_observed_steps(loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 joins after 300 steps.

    In `loop`, `.` is a forward pass, a letter is a call of the optimizer with this name, and `*` is a call of both
    optimizers in backward.
    """
    store, boundaries = Store(), Boundaries()
    rounds = ended = 0
    forward = False

    class Session:
        def __init__(self, *_: Any, **__: Any) -> None:
            raise SystemExit

    monkeypatch.setattr(attachment, "independent_position", lambda: POSITION)
    monkeypatch.setattr(attachment, "job_store", lambda _: store)
    monkeypatch.setattr(attachment, "StartBarrier", functools.partial(StartBarrier, clock=lambda: rounds / 1e3))
    monkeypatch.setattr(attachment, "AttachedSession", Session)
    weights = {letter: torch.ones(1, requires_grad=True) for letter in "AB"}
    optimizers = {letter: torch.optim.SGD([weight], lr=0.0) for letter, weight in weights.items()}
    entered = EnteredProcess(Settings(run_dir=str(tmp_path), command=()))
    entered.handler = attachment.Attachment(entered).stepped
    handlers: set[Callable[[Any], None]] = {entered.handler}

    def step(letter: str) -> None:
        nonlocal ended, forward
        assert entered.handler is not None
        ended += boundaries.ends_step(OptimizerCall(id(optimizers[letter]), forward))
        forward = False
        handlers.add(entered.handler)
        entered.handler(optimizers[letter])

    for letter, weight in weights.items():
        hooked: Any = weight
        hooked.register_post_accumulate_grad_hook(lambda _, letter=letter: step(letter))

    def train() -> None:
        """Repeat the loop; rank 1 joins in round 300."""
        nonlocal rounds, forward
        for rounds in range(1, 1000):
            for sign in loop:
                if sign.isalpha():
                    step(sign)
                    continue
                output: Any = weights["A"] * weights["B"]
                forward = True
                if sign == "*":
                    output.backward()
            if rounds == 300:
                store.set("here/1", "[false, 8]")

    with pytest.raises(SystemExit):
        train()
    assert ended == json.loads(store.values["start"])[0]
    assert len(handlers) > 1, "no step was counted without observation"
