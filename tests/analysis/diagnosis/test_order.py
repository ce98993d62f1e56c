"""In what order findings are said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpudiag.analysis.diagnosis.calibration import AS_RECORDED
from gpudiag.analysis.diagnosis.weigh import in_order
from gpudiag.model.analysis import Finding

GAINS = st.lists(st.tuples(st.sampled_from(["waste", "exchange"]), st.integers(950, 1050)), max_size=6)


def weighed(kind: str, gain_ms: float) -> Any:
    finding = Finding(code=kind, severity="info")
    return SimpleNamespace(proposal=SimpleNamespace(kind=kind), gain_ms=gain_ms, finding=finding)


@given(GAINS)
def test_waste_is_said_before_all_work_that_gains_no_more(gains: list[tuple[str, int]]) -> None:
    said = [(one.proposal.kind, one.gain_ms) for one in in_order([weighed(kind, gain) for kind, gain in gains])]
    assert sorted(said) == sorted(gains)
    for kind in ("waste", "exchange"):
        mine = [gain for of, gain in said if of == kind]
        assert mine == sorted(mine, reverse=True)
    for place, (kind, gain) in enumerate(said):
        for sooner, more in said[:place]:
            if (sooner, kind) == ("exchange", "waste"):
                assert gain < (1 - AS_RECORDED) * more
            if (sooner, kind) == ("waste", "exchange"):
                assert more >= (1 - AS_RECORDED) * gain
