"""Test the order of findings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.analysis.diagnosis.calibration import AS_RECORDED
from gpudiag.analysis.diagnosis.scoring import _stays, in_order
from gpudiag.model.analysis import Finding

GAINS = st.lists(st.tuples(st.sampled_from(["waste", "communication"]), st.integers(950, 1050)), max_size=6)


def weighed(kind: str, gain_ms: float, instead: tuple[str, ...] = ()) -> Any:
    finding = Finding(code=kind, severity="info", instead=instead)
    return SimpleNamespace(proposal=SimpleNamespace(kind=kind), savings_ms=gain_ms, finding=finding)


@given(GAINS)
def test_waste_precedes_work_with_similar_savings(gains: list[tuple[str, int]]) -> None:
    said = [
        (scored.proposal.kind, scored.savings_ms) for scored in in_order([weighed(kind, gain) for kind, gain in gains])
    ]
    assert sorted(said) == sorted(gains)
    for kind in ("waste", "communication"):
        of_kind = [gain for of, gain in said if of == kind]
        assert of_kind == sorted(of_kind, reverse=True)
    for place, (kind, gain) in enumerate(said):
        for sooner, more in said[:place]:
            if (sooner, kind) == ("communication", "waste"):
                assert gain < (1 - AS_RECORDED) * more
            if (sooner, kind) == ("waste", "communication"):
                assert more >= (1 - AS_RECORDED) * gain


@pytest.mark.parametrize(
    ("amounts", "instead", "stays"),
    [
        ((10.0, 9.0), (), [True, True]),
        ((9.0, 9.1), (), [True, True]),  # the second finding saves about as much as the first
        ((8.0, 10.0), (), [False, True]),  # the second finding has by far the largest savings
        ((8.0, 10.0), ("waste",), [True, True]),  # the first finding is an alternative to the second
        ((5.0, 4.0), (), [False, False]),  # the findings save different amounts
    ],
)
def test_finding_is_confirmed_if_it_keeps_its_amount_and_first_place(
    amounts: tuple[float, float], instead: tuple[str, ...], stays: list[bool]
) -> None:
    weighted = [weighed("waste", 10.0), weighed("communication", 9.0, instead)]
    assert _stays(weighted, np.array([10.0, 9.0]), np.array(amounts)).tolist() == stays


def test_first_waste_may_save_less_than_later_work() -> None:
    weighted = [weighed("waste", 5.0), weighed("launching", 10.0)]
    assert _stays(weighted, np.array([5.0, 10.0]), np.array([5.0, 10.0])).tolist() == [True, True]
