"""Test that blocks tile any volume: every voxel is written once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.errors import UsageError
from gpudiag.training.jobs.volume.blocks import CPU_CUT, CPU_VOLUME, GPU_CUT, GPU_VOLUME, Blocks, Cut

extents = st.tuples(*[st.integers(1, 23)] * 3)


@st.composite
def cut_volumes(draw: st.DrawFn) -> tuple[tuple[int, int, int], Cut]:
    written = draw(st.tuples(*[st.integers(1, 7)] * 3))
    halo = draw(st.tuples(*[st.integers(0, 3)] * 3))
    more = draw(extents)
    z, y, x = (inner + extra for inner, extra in zip(written, more, strict=True))
    return (z, y, x), Cut(written=written, halo=halo)


@given(cut_volumes())
def test_every_voxel_is_written_exactly_once(case: tuple[tuple[int, int, int], Cut]) -> None:
    volume, cut = case
    times = np.zeros(volume, dtype=int)
    for block in Blocks(volume, cut):
        times[block.written.slices()] += 1
    assert (times == 1).all()


@given(cut_volumes())
def test_written_region_is_one_chunk_within_seen_region(case: tuple[tuple[int, int, int], Cut]) -> None:
    volume, cut = case
    for block in Blocks(volume, cut):
        assert block.seen.shape == cut.seen
        for axis in range(3):
            begin, end = block.written.begin[axis], block.written.end[axis]
            assert begin % cut.written[axis] == 0
            assert end - begin == min(cut.written[axis], volume[axis] - begin)
            assert block.seen.begin[axis] + cut.halo[axis] <= begin
            assert end <= block.seen.end[axis] - cut.halo[axis]
            # At most the halo lies outside of the volume, and is mirrored there.
            assert -cut.halo[axis] <= block.seen.begin[axis]
            assert block.seen.end[axis] <= volume[axis] + cut.halo[axis]


@pytest.mark.parametrize(("volume", "cut"), [(GPU_VOLUME, GPU_CUT), (CPU_VOLUME, CPU_CUT)])
def test_default_volumes_have_expected_blocks(volume: tuple[int, int, int], cut: Cut) -> None:
    blocks = Blocks(volume, cut)
    assert sum(block.written.voxels for block in blocks) == volume[0] * volume[1] * volume[2]
    assert all(side % 27 == 0 for side in cut.seen[1:])
    assert all(halo < extent for halo, extent in zip(cut.halo, volume, strict=True))


def test_gpu_blocks_have_the_size_used_by_the_earlier_benchmark() -> None:
    assert GPU_CUT.seen == (65, 675, 675)
    assert len(Blocks(GPU_VOLUME, GPU_CUT)) == 4 * 6 * 6


def test_blocks_of_a_teravoxel_are_made_on_demand() -> None:
    many = Blocks((4000, 360_000, 360_000), CPU_CUT)
    assert len(many) == 1000 * 10_000 * 10_000
    assert many[-1].written.end == (4000, 360_000, 360_000)
    assert many[-2:] == [many[len(many) - 2], many[-1]]
    with pytest.raises(IndexError):
        many[len(many)]


@pytest.mark.parametrize("volume", [(54, 575, 575), (55, 574, 575), (55, 575, 574), (1, 1, 1)])
def test_volume_smaller_than_a_block_is_refused(volume: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="is smaller than a block, which writes 55 x 575 x 575") as caught:
        Blocks(volume, GPU_CUT)
    assert "--volume" in caught.value.hint
