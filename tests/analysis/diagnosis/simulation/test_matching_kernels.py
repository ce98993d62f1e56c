"""Test which kernels match, and the estimates for unmatched kernels."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.analysis.diagnosis.simulation.contention import (
    Contention,
    _DurationsByKey,
    _estimate_unmatched,
    _joined,
    _Kernels,
    _neighbourhoods,
    _of_repeated_layers,
    _positions,
)
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

NAN = float("nan")


def groups(key: Sequence[int], time: Sequence[float], chosen: Sequence[int] | None = None) -> _DurationsByKey:
    times = np.array(time, np.float64)
    taken = np.argsort(times, kind="stable") if chosen is None else np.array(chosen, np.intp)
    return _DurationsByKey(np.array(key, np.int64), times, taken)


def test_lower_median_and_interquartile_range_by_key() -> None:
    quartiles = groups([1, 0, 1, 1, 0, 1, 1, 3], [50, 7, 20, 10, 9, 40, 30, 8])
    assert quartiles.median().tolist() == pytest.approx([7, 30, NAN, 8], nan_ok=True)
    # The quartiles of 10, 20, 30, 40 and 50 are 20 and 40. If there are two values, both quartiles are the lower value.
    assert quartiles.spread().tolist() == pytest.approx([0, 20 / 30, NAN, 0], nan_ok=True)
    assert quartiles.distinct(np.array([1, 2, 1, 3, 2, 1, 1, 9])).tolist() == [1, 2, 0, 1]
    assert groups([], []).median().tolist() == []


def test_kernels_that_are_not_chosen_are_ignored() -> None:
    quartiles = groups([0, 0, 1], [5, 9, 7], chosen=[1])
    assert quartiles.median().tolist() == pytest.approx([9, NAN], nan_ok=True)
    assert quartiles.distinct(np.array([4, 5, 6])).tolist() == [1, 0]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 40)), min_size=1), st.integers(1, 1000))
@examples(60)
def test_joined_keys_are_unique_per_pair(pairs: list[tuple[int, int]], scale: int) -> None:
    """Small keys are numbered by a table, and large keys by sorting."""
    a, b = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    key = _joined(a, b * scale).tolist()
    assert len(set(zip(pairs, key, strict=True))) == len(set(pairs)) == len(set(key))
    assert sorted(set(key)) == list(range(len(set(key))))


def layers(
    free: Sequence[float], contended: Sequence[float], *, free_positions: int = 2, contended_positions: int = 1
) -> float:
    """Return the contention-free duration of kernels of one key, from durations without and with contention.

    `free_positions` and `contended_positions` are the numbers of positions in the step of kernels without and with
    contention.
    """
    time = np.array([*free, *contended], np.float64)
    position = np.array(
        [*np.arange(len(free)) % free_positions, *np.arange(len(contended)) % contended_positions], np.int64
    )
    by_time = np.argsort(time, kind="stable")
    key = np.zeros(len(time), np.int64)
    of_free, of_contended = by_time[by_time < len(free)], by_time[by_time >= len(free)]
    return float(
        _of_repeated_layers(_DurationsByKey(key, time, of_free), _DurationsByKey(key, time, of_contended), position)[0]
    )


@pytest.mark.parametrize(
    ("free", "contended", "positions", "expected"),
    [
        ((100, 100, 100), (150, 150, 150), (2, 1), 100),
        ((95, 95, 100, 105, 105), (150, 150, 150), (2, 1), 100),
        # Contention-free durations differ too much, so the layers have several sizes.
        ((94, 94, 100, 105, 105), (150, 150, 150), (2, 1), NAN),
        ((100, 100, 100), (130, 130, 140, 165, 165), (2, 1), 100),
        ((100, 100, 100), (130, 130, 140, 166, 166), (2, 1), NAN),
        ((100, 100, 100), (250, 250, 250), (2, 1), 100),
        # The kernels beside collectives take much longer, so they do different work.
        ((100, 100, 100), (251, 251, 251), (2, 1), NAN),
        # The contention-free kernels are at a single position, so there is no repeated layer.
        ((100, 100, 100), (150, 150, 150), (1, 2), NAN),
        ((100, 100, 100), (150, 150, 150), (1, 3), 100),
    ],
)
def test_repeated_layers_match_if_durations_are_similar(
    free: tuple[float, ...], contended: tuple[float, ...], positions: tuple[int, int], expected: float
) -> None:
    duration = layers(free, contended, free_positions=positions[0], contended_positions=positions[1])
    assert duration == pytest.approx(expected, nan_ok=True)


def kernels(**columns: Sequence[float]) -> _Kernels:
    """Return kernels with `columns`; all other columns are 0."""
    count = len(next(iter(columns.values())))
    whole: dict[str, Any] = {
        name: np.array(columns.get(name, [0] * count), np.int64) for name in ("op", "track", "name")
    }
    times: dict[str, Any] = {
        name: np.array(columns.get(name, [0] * count), np.float64) for name in ("duration", "beside", "waiting", "held")
    }
    return _Kernels(**whole, **times)


def test_kernel_is_contention_free_if_it_hardly_ran_beside_a_collective() -> None:
    assert kernels(duration=[100, 100, 0, 10], beside=[4.9, 5.0, 0.04, 0.5]).free.tolist() == [True, False, True, False]


def test_unmatched_kernels_are_slowed_like_most_matched_ones() -> None:
    of = kernels(
        duration=[100, 200, 60, 40, 50], beside=[100, 100, 60, 20, 50], held=[9, 9, 9, 9, 9], track=[0, 0, 0, 0, 1]
    )
    time = np.array([80.0, 210.0, NAN, NAN, NAN])
    _estimate_unmatched(of, time, np.arange(5))
    # On the first track a tenth is removed as contention (20 of 200). On the second track only the share of SMs is
    # known.
    assert time.tolist() == [80, 210, 54, 38, 41]


def test_kernels_with_few_matches_lose_the_share_of_sms() -> None:
    of = kernels(duration=[100, 60, 40, 50], beside=[49, 30, 20, 0], held=[9, 12, 70, 0])
    time = np.array([80.0, NAN, NAN, NAN])
    _estimate_unmatched(of, time, np.arange(4))
    assert time.tolist() == pytest.approx([80, 48, 0, NAN], nan_ok=True)
    of = kernels(duration=[100, 60, 40], beside=[50, 30, 20], held=[9, 12, 70])
    time = np.array([80.0, NAN, NAN])
    _estimate_unmatched(of, time, np.arange(3))
    assert time.tolist() == [80, 48, 32]  # matches of half of the kernels are enough


def test_kernel_loses_at_most_its_duration() -> None:
    of = kernels(duration=[300, 60], beside=[100, 60], held=[0, 0])
    time = np.array([80.0, NAN])
    _estimate_unmatched(of, time, np.arange(2))
    assert time.tolist() == pytest.approx([80, 0], nan_ok=True)


def test_contention_is_split_between_waiting_and_transfer() -> None:
    baseline = Contention(free_ns=np.array([80.0, 80, NAN]), waiting_share=np.array([0.25, 1, 0.5]))
    took = np.array([100.0, 100, 100])
    assert baseline.transfer_removed_from(took).tolist() == [85, 100, 100]
    assert baseline.transfer_removed_from(took, 0.5).tolist() == [92.5, 100, 100]
    assert baseline.waiting_removed_from(took).tolist() == [95, 80, 100]


def graph_of(start: Sequence[int], step: Sequence[int], streams: Sequence[tuple[int, int]]) -> Any:
    device = SimpleNamespace(start=np.array(start), step=np.array(step))
    return SimpleNamespace(device=device, streams=tuple(streams))


def test_position_of_a_kernel_is_the_ordinal_of_its_name_in_the_step() -> None:
    """Positions are numbered in order of start, per device."""
    start, step = [30, 10, 20, 50, 40, 60, 15], [0, 0, 0, 1, 1, 1, 0]
    of = kernels(op=range(7), name=[1, 1, 2, 1, 1, 2, 1], track=[0, 0, 0, 0, 0, 0, 1])
    place = _positions(graph_of(start, step, [(0, 7)]), of).tolist()
    first, second, other = place[1], place[0], place[2]
    assert place == [second, first, other, second, first, other, first]
    assert len({first, second, other}) == 3


def test_neighbourhood_is_two_kernels_before_and_after_in_the_stream() -> None:
    """Kernels have equal keys if and only if they and their neighbours in the stream have equal names (letters)."""
    names = "abcdeabcdf" + "abcde"
    of = kernels(op=range(15), name=[ord(name) for name in names])
    near_two, near_one = (
        keys.tolist() for keys in _neighbourhoods(graph_of(range(15), [0] * 15, [(0, 10), (10, 15)]), of)
    )

    def around(reach: int) -> list[str]:
        parts = ["--" + names[:10] + "--", "--" + names[10:] + "--"]
        return [part[at - reach : at + reach + 1] for part in parts for at in range(2, len(part) - 2)]

    for keys, reach in ((near_two, 2), (near_one, 1)):
        counts = Counter(zip(keys, around(reach), strict=True))
        assert len(counts) == len(set(keys)) == len(set(around(reach)))
