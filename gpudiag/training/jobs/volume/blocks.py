"""Cut a volume into blocks. Each block is predicted with a halo, and each voxel is written by exactly one block.

Worked example. An axis has 130 voxels. A block writes at most 55 voxels, and its halo is 5 voxels on either side:

    block    written      predicted    read
    0        0 to 55      0 to 55      -5 to 60, of which 5 are outside and mirrored
    1        55 to 110    55 to 110    50 to 115
    2        110 to 130   75 to 130    70 to 135, of which 5 are mirrored

The network's input always has the same shape. Therefore the last block is moved back until its predicted voxels are
inside the volume. Halo voxels outside the volume are mirrored. The last block writes only voxels that no other block
writes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import overload

import msgspec

from gpudiag.errors import UsageError

Voxels = tuple[int, int, int]
"""Numbers of voxels along z, y and x."""


class Region(msgspec.Struct, frozen=True, kw_only=True):
    """A box of voxels from `begin` (included) to `end` (not included)."""

    begin: Voxels
    end: Voxels

    @property
    def voxels(self) -> int:
        """Number of voxels in the region."""
        return math.prod(self.shape)

    @property
    def shape(self) -> Voxels:
        """Number of voxels along z, y and x."""
        z, y, x = (end - begin for begin, end in zip(self.begin, self.end, strict=True))
        return z, y, x

    def slices(self, origin: Voxels = (0, 0, 0)) -> tuple[slice, slice, slice]:
        """Return the slices that select the region from an array whose first voxel is at `origin`."""
        z, y, x = (
            slice(begin - first, end - first) for begin, end, first in zip(self.begin, self.end, origin, strict=True)
        )
        return z, y, x


class VolumeBlock(msgspec.Struct, frozen=True, kw_only=True):
    """The region that a block writes, and the region that the network reads, which may extend beyond the volume."""

    written: Region
    seen: Region


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """Size of blocks along each axis: maximum number of written voxels, and number of halo voxels on either side."""

    written: Voxels
    halo: Voxels

    @property
    def seen(self) -> Voxels:
        """Shape of the network's input."""
        z, y, x = (inner + 2 * halo for inner, halo in zip(self.written, self.halo, strict=True))
        return z, y, x


#: A block reads 65 x 675 x 675 voxels and writes 55 x 575 x 575.
GPU_CUT = Cut(written=(55, 575, 575), halo=(5, 50, 50))
#: A block reads 6 x 54 x 54 voxels and writes 4 x 36 x 36.
CPU_CUT = Cut(written=(4, 36, 36), halo=(1, 9, 9))
#: Size of a CREMI volume (125 x 1250 x 1250) with its padding: about 1.9 gigavoxels.
GPU_VOLUME = (200, 3072, 3072)
CPU_VOLUME = (8, 100, 100)


class Blocks(Sequence[VolumeBlock]):
    """The blocks of a volume, in an order in which x varies fastest. Each block is made when it is accessed.

    Raise UsageError if the volume is smaller than a block.
    """

    def __init__(self, volume: Voxels, cut: Cut) -> None:
        if any(extent < inner for extent, inner in zip(volume, cut.written, strict=True)):
            raise UsageError(
                f"a volume of {_text(volume)} voxels is smaller than a block, which writes {_text(cut.written)}",
                "Give a larger --volume Z,Y,X.",
            )
        self._volume, self._cut = volume, cut
        self._counts = [math.ceil(extent / inner) for extent, inner in zip(volume, cut.written, strict=True)]

    def __len__(self) -> int:
        return math.prod(self._counts)

    @overload
    def __getitem__(self, number: int) -> VolumeBlock: ...
    @overload
    def __getitem__(self, number: slice) -> list[VolumeBlock]: ...
    def __getitem__(self, number: int | slice) -> VolumeBlock | list[VolumeBlock]:
        if isinstance(number, slice):
            return [self[index] for index in range(len(self))[number]]
        number = range(len(self))[number]  # raises IndexError, and counts negative numbers from the end
        _, rows, columns = self._counts
        z, y, x = (
            self._interval(axis, index)
            for axis, index in enumerate((number // (rows * columns), number // columns % rows, number % columns))
        )
        return VolumeBlock(
            written=Region(begin=(z[0], y[0], x[0]), end=(z[1], y[1], x[1])),
            seen=Region(begin=(z[2], y[2], x[2]), end=(z[3], y[3], x[3])),
        )

    def _interval(self, axis: int, index: int) -> tuple[int, int, int, int]:
        """Return begin and end of the written region, and begin and end of the seen region, along one axis."""
        extent, inner, halo = self._volume[axis], self._cut.written[axis], self._cut.halo[axis]
        begin = index * inner
        predicted = min(begin, extent - inner)
        return begin, min(begin + inner, extent), predicted - halo, predicted + inner + halo


def _text(shape: Voxels) -> str:
    return " x ".join(str(extent) for extent in shape)
