"""Test which calls of optimizers end a step."""

from __future__ import annotations

from gpudiag.training.attach.boundaries import Boundaries, OptimizerCall


def ends(pattern: str, repeats: int) -> list[bool]:
    """Return whether each call ends a step. In `pattern`, `.` is a forward pass, and a letter an optimizer's call."""
    found, boundaries, forward = [], Boundaries(), False
    for letter in pattern * repeats:
        if letter == ".":
            forward = True
        else:
            found.append(boundaries.ends_step(OptimizerCall(ord(letter), forward)))
            forward = False
    return found


def per_step(pattern: str, repeats: int = 40) -> list[int]:
    """Return the number of steps that end in each of the last ten repetitions of the pattern."""
    calls = len(pattern.replace(".", ""))
    ended = ends(pattern, repeats)
    return [sum(ended[calls * repeat : calls * (repeat + 1)]) for repeat in range(repeats - 10, repeats)]


def test_each_iteration_of_a_loop_is_one_step() -> None:
    kinds = {
        "one optimizer": ".A",
        "a GAN": ".A.B",
        "a critic that trains five times": ".A.A.A.A.A.B",
        "one per parameter, in backward": ".ABCD",
        "groups of one optimizer": ".AAAAA",
        "two, in groups": ".AA.BBB",
    }
    assert {kind: {1} for kind in kinds} == {kind: set(per_step(pattern)) for kind, pattern in kinds.items()}


def test_rarely_called_optimizer_ends_no_step() -> None:
    assert set(per_step(".A" * 60 + ".B", 20)) == {60}


def test_step_with_missed_calls_does_not_count_in_calls_per_step() -> None:
    boundaries = Boundaries()
    for call in [OptimizerCall(1, True), OptimizerCall(1, True), OptimizerCall(2, True)] * 4:
        boundaries.ends_step(call)
    boundaries.missed_calls()
    calls = [OptimizerCall(optimizer, True) for optimizer in (2, 1, 1, 2)]
    assert [boundaries.ends_step(call) for call in calls] == [True, False, False, True]
    assert boundaries.calls_per_step == 3


def test_no_step_ends_without_forward_pass() -> None:
    assert not any(ends("A", 100))
