"""Test the layout, chunks, owners and processors of the shared-host all-reduce, without other processes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.training.strategies.central_optimizer import owners
from gpudiag.training.strategies.shared_host import layout as at
from gpudiag.training.strategies.shared_host.layout import ALIGNMENT, ChunkedTensor, Layout, chunk_length, reached
from gpudiag.training.strategies.shared_host.reducers import parse_cpu_list, processors_near

layouts = st.builds(
    lambda world, pages, slots, lanes: Layout(
        world=world, chunk_bytes=pages * at.PAGE, slots=max(slots, lanes), lanes=lanes
    ),
    world=st.integers(1, 16),
    pages=st.integers(1, 5),
    slots=st.sampled_from([1, 2, 4, 8]),
    lanes=st.sampled_from([1, 2, 4, 8]),
)


@given(layouts)
def test_layout_has_no_overlaps_or_gaps(layout: Layout) -> None:
    ranks = range(layout.world)
    parts = [(layout.control(rank), at.PAGE) for rank in ranks]
    parts += [(layout.ring(rank), at.RING * at.PIECE) for rank in ranks]
    parts += [(layout.slot(r, n), layout.chunk_bytes) for r in range(layout.world + 1) for n in range(layout.slots)]
    end = 0
    for begin, size in sorted(parts):
        assert begin == end  # no gap and no overlap
        end = begin + size
    assert end == layout.total_bytes
    assert layout.slot(0, 5 * layout.slots) == layout.slot(0, 0)


def test_counters_have_separate_cache_lines() -> None:
    lines = [at.ARRIVED + lane * at.LINE for lane in range(at.MOST_LANES)]
    lines += [at.FETCHED + lane * at.LINE for lane in range(at.MOST_LANES)]
    lines += [at.REDUCED, at.READY, at.STATE, at.SUBMITTED]
    assert len(set(lines)) == len(lines)
    assert all(line % at.LINE == 0 and line < at.PAGE for line in lines)


@pytest.mark.parametrize(("slots", "lanes", "size"), [(3, 1, at.PAGE), (2, 4, at.PAGE), (16, 16, at.PAGE), (2, 2, 100)])
def test_invalid_layouts_are_refused(slots: int, lanes: int, size: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        Layout(world=2, chunk_bytes=size, slots=slots, lanes=lanes)


@given(st.integers(0, at.WRAP - 1), st.integers(0, at.WRAP // 2 - 1))
def test_counter_comparison_handles_wrapped_counters(value: int, more: int) -> None:
    assert reached((value + more) % at.WRAP, value)
    assert more == 0 or not reached(value, (value + more) % at.WRAP)


@given(st.integers(1, 10**7), st.integers(5, 20), st.integers(0, at.WRAP - 1))
def test_chunks_cover_the_tensor_in_order(count: int, power: int, first: int) -> None:
    most = 1 << power
    length = chunk_length(count, most, least=min(256, most), few=4)
    assert 0 < length <= most
    assert length % ALIGNMENT == 0
    if count // length > 10_000:
        return  # too many chunks to list
    chunks = ChunkedTensor(tensor=torch.empty(count, device="meta"), wire=None, first=first, length=length).chunks
    assert [begin for _, begin, _ in chunks] == [0, *(end for _, _, end in chunks[:-1])]
    assert chunks[-1][2] == count
    assert [number for number, _, _ in chunks] == [(first + index) % at.WRAP for index in range(len(chunks))]


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 8))
def test_owners_balance_variable_sizes(sizes: list[int], count: int) -> None:
    owner = owners(sizes, count)
    load = [sum(size for size, who in zip(sizes, owner, strict=True) if who == number) for number in range(count)]
    # Each variable goes to the owner with the least load. Therefore the owner with the largest load had the smallest
    # load before its last variable.
    assert max(load) - min(load) <= max(sizes, default=0)


def test_cpu_lists_are_parsed() -> None:
    assert parse_cpu_list("0-3,8\n") == {0, 1, 2, 3, 8}
    assert parse_cpu_list("\n") == set()
    with pytest.raises(ValueError, match="invalid literal"):
        parse_cpu_list("none")
    assert processors_near(torch.device("cpu"))
