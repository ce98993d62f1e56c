"""Which calls of optimizers end a step."""

from __future__ import annotations

from gpudiag.training.attach.boundaries import Boundaries, Call
from gpudiag.training.attach.roll_call import RollCall, Start


def ends(pattern: str, repeats: int) -> list[bool]:
    """`.` is a forward pass, a letter a call of that optimizer."""
    found, boundaries, forward = [], Boundaries(), False
    for letter in pattern * repeats:
        if letter == ".":
            forward = True
        else:
            found.append(boundaries.ends_step(Call(ord(letter), forward)))
            forward = False
    return found


def per_step(pattern: str, repeats: int = 40) -> list[int]:
    """How many steps ended in each repetition of the pattern, of the last ten."""
    calls = len(pattern.replace(".", ""))
    found = ends(pattern, repeats)
    return [sum(found[calls * repeat : calls * (repeat + 1)]) for repeat in range(repeats - 10, repeats)]


def test_each_iteration_is_one_step() -> None:
    kinds = {
        "one optimizer": ".A",
        "a GAN": ".A.B",
        "a critic that trains five times": ".A.A.A.A.A.B",
        "one per parameter, in backward": ".ABCD",
        "groups of one optimizer": ".AAAAA",
        "two, in groups": ".AA.BBB",
    }
    assert {kind: {1} for kind in kinds} == {kind: set(per_step(pattern)) for kind, pattern in kinds.items()}


def test_one_that_steps_now_and_then_is_no_measure() -> None:
    assert set(per_step(".A" * 60 + ".B", 20)) == {60}


def test_without_forward_passes_nothing_ends() -> None:
    assert not any(ends("A", 100))


class Store:
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)


def begins(store: Store, counts: list[int], *, own_profiler: bool = False) -> list[Start | None]:
    """Ranks that have taken these steps by now look at each step from here on, in turn, until all know."""
    ranks = [
        RollCall(rank=rank, world_size=len(counts), store=store, own_profiler=own_profiler and rank == 1)
        for rank in range(len(counts))
    ]
    started: list[Start | None] = [None] * len(counts)
    for after in range(1600):
        for rank, call in enumerate(ranks):
            found = call.look(counts[rank] + after)
            if found is not None and found.step == counts[rank] + after:
                started[rank] = found
    return started


def test_all_ranks_begin_at_one_step() -> None:
    early = ([1, 1, 1], [2, 1, 2], [1, 2, 1], [47, 48, 47])
    for counts in (*early, [1000, 1001, 1000], [1023, 1024, 1023], [4090, 4091, 4090]):
        steps = {start.step if start else None for start in begins(Store(), counts)}
        assert len(steps) == 1, counts
        assert None not in steps, counts


def test_nobody_begins_without_the_others_and_nobody_waits() -> None:
    store = Store()
    first = RollCall(rank=0, world_size=2, store=store, own_profiler=False)
    assert [first.look(step) for step in range(1, 200)] == [None] * 199


def test_one_ranks_own_profiler_is_everyones_reason_not_to_record() -> None:
    assert {start.recorded if start else None for start in begins(Store(), [1, 1], own_profiler=True)} == {False}


def test_one_process_begins_at_once() -> None:
    assert RollCall(rank=0, world_size=1, store=None, own_profiler=False).look(5) == Start(5, recorded=True)
