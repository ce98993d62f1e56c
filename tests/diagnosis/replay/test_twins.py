"""What kernels gain when what disturbs them goes away."""

from __future__ import annotations

import numpy as np

from gpudiag.diagnosis.replay.twins import Twins

TWINS = Twins(undisturbed_ns=np.array([np.nan, 80.0, 80.0, 120.0]), beside_waiting=np.array([False, True, False, True]))
MEASURED = np.array([100.0, 100.0, 100.0, 100.0])


def test_the_disturbed_get_their_twins_time_and_no_more() -> None:
    assert TWINS.relieved(MEASURED).tolist() == [100, 80, 80, 100]


def test_when_half_of_the_waiting_is_gone_so_is_half_of_what_it_cost() -> None:
    assert TWINS.relieved_of_waiting(MEASURED, np.full(4, 0.5)).tolist() == [100, 90, 100, 100]
    assert TWINS.relieved_of_waiting(MEASURED, np.zeros(4)).tolist() == MEASURED.tolist()


def test_relieved_again_nothing_changes() -> None:
    once = TWINS.relieved(MEASURED)
    assert TWINS.relieved(once).tolist() == once.tolist()
    assert TWINS.relieved_of_waiting(once, np.ones(4)).tolist() == once.tolist()
