from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.report.evidence import evidence_items
from tests.examples import examples

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=40), inner, max_size=20),
    max_leaves=60,
)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("mean_wait_ms", 26.1, "mean wait 26.1 ms"),
        ("exposed_ms_per_step", 0.83, "exposed 0.83 ms per step"),
        ("busbw_gb_per_s", 251.04, "busbw 251 GB/s"),
        ("collectives_per_step", 6.0, "collectives 6 per step"),
        ("step_ms_now", 63.42, "step now 63.4 ms"),
        ("exposed_ms_by_rank", {"0": 0.0, "1": 1.25}, "exposed: rank 1 1.25 ms"),
        ("lateness_ms_by_rank", {"0": -9.44, "1": 40.0}, "lateness: rank 1 40 ms"),
        ("confirmed_by_variations_percent", 50.0, "confirmed by 50 % of the re-analyses"),
        ("confirmed_by_variations_percent", 0.0, "confirmed by 0 % of the re-analyses"),
        ("largest", "all_reduce", "largest: all_reduce"),
        ("copied_bytes", 26_214_400, "copied 26.2 MB"),
        ("host_events", 20_311, "host events 20 311"),
        ("waiting_ranks", [0, 1, 3], "waiting ranks 0, 1, 3"),
        ("times_last_by_rank", {"0": 7, "2": 11}, "times last: rank 0 7, rank 2 11"),
        ("own_ms_per_step", {"aten::max_pool2d": 1.5}, "own: aten::max_pool2d 1.50 ms per step"),
        ("places_ms", {"after aten::add, in f": 1.5}, "places: after aten::add, in f: 1.50 ms"),
        ("calls", ["cudaStreamSynchronize", "cudaMemcpy"], "calls cudaStreamSynchronize, cudaMemcpy"),
        ("pinned", False, "pinned no"),
        ("driver", None, "driver unknown"),
        ("ranks", list(range(100)), "ranks 0, 1, 2, 3, 4, 5 and 94 more"),
        ("nothing", [], "nothing none"),
        ("tree", {"a": {"b": {"c": 1}}}, "tree: a …"),
    ],
)
def test_evidence_is_described_in_words(key: str, value: Any, words: str) -> None:
    assert evidence_items({key: value}) == [words]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("collectives_per_step", 0.0),
        ("transfer_ms_per_step", 0.0),
        ("pageable_ms_per_step", 0.004),
        ("savings_ms_by_part", {"stall": 0.0, "operators": 0.0}),
        ("lateness_ms_by_rank", {"3": -9.44}),
    ],
)
def test_zero_evidence_is_omitted(key: str, value: Any) -> None:
    assert evidence_items({key: value}) == []


@given(st.dictionaries(st.text(max_size=300), JSON, max_size=30))
@examples(40)  # an example takes 70 ms to generate
def test_any_evidence_is_bounded_printable_text(evidence: dict[str, Any]) -> None:
    items = evidence_items(evidence)
    assert all(len(item) < 2000 for item in items)
    assert not [c for item in items for c in item if ord(c) < 32]
