"""Test the diagnosis of an expert that gets more tokens than its peers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpudiag.app.analyze import analyze

#: Unprofiled step time in ms with the hot expert minus that with even experts, measured in alternation.
COST_MS = 293.8


def test_cost_of_a_hot_expert_is_that_of_uneven_tokens(whole_recording: Callable[[str], Path]) -> None:
    """The savings are those of an even distribution, in which all experts get the mean number of tokens."""
    analysis = analyze([whole_recording("parallel/hot_ep4")])
    first = analysis.findings[0]
    assert (first.code, first.ranks, first.cause) == ("straggler", (2,), "experts")
    assert first.recoverable_ms_per_step == pytest.approx(COST_MS, rel=0.1)
    assert analysis.parallelism is not None
    assert analysis.parallelism.imbalance is not None
    assert analysis.parallelism.imbalance.by["experts"].saved_ms == pytest.approx(COST_MS, rel=0.1)
