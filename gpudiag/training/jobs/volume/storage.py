"""Store volumes on disk as Zarr (version 3): chunked arrays that several processes read and write at the same time.

Each block of a prediction is one chunk, so no two processes write the same file. Chunks are not compressed, because
predictions of random data compress less than predictions of real data, so the time to write them would mislead.
"""

from __future__ import annotations

import shutil
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from gpudiag.errors import FrameworkMissingError, WorkerFailedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy as np

    from gpudiag.training.jobs.volume.blocks import Region, VolumeBlock, Voxels

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

#: Name of the input volume, which is removed at the end of the run.
VOLUME = "volume.zarr"
#: Name of the prediction, which is removed at the end of the run unless the job keeps it.
PREDICTION = "prediction.zarr"
#: Name of the output of the timed and recorded steps, which is removed at the end of the run.
SCRATCH = "again.zarr"

#: Maximum number of concurrent writes. More concurrent writes would need more memory without being faster.
_WRITES = 4

#: Shape of the input volume's chunks, in voxels. Chunks differ from the blocks, as in real volumes.
_CHUNK = (32, 256, 256)

#: Messages of the operating system for a full disk (ENOSPC, EDQUOT).
_FULL = ("No space left on device", "Disk quota exceeded")


def library() -> Any:
    """Import `tensorstore`; raise FrameworkMissingError if this interpreter does not have it."""
    try:
        import tensorstore
    except ImportError as error:
        raise FrameworkMissingError(
            f"predicting a volume needs tensorstore, which {sys.executable} does not have",
            "Install it: pip install tensorstore",
        ) from error
    return tensorstore


def remove_volumes(run_dir: Path, *, but: str | None = None) -> None:
    """Delete a run's volumes, except the volume called `but`."""
    for name in (VOLUME, PREDICTION, SCRATCH):
        if name != but:
            shutil.rmtree(run_dir / name, ignore_errors=True)


def check_space(directory: Path, needed: int) -> None:
    """Raise WorkerFailedError if the disk has less than `needed` bytes free."""
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise WorkerFailedError(
            f"the volumes need {needed / 1e9:.1f} GB in {directory}, where {free / 1e9:.1f} GB are free", _ROOM
        )


_ROOM = "Give a smaller --volume Z,Y,X, or an --output on a larger disk."


class Volume:
    """A uint8 array on disk with axes (z, y, x) or (channel, z, y, x). `store` is the open tensorstore at `path`."""

    def __init__(self, store: Any, path: Path) -> None:
        self._store, self.path = store, path

    @classmethod
    def create(cls, path: Path, shape: Sequence[int], chunk: Sequence[int]) -> Volume:
        """Make an array of zeros of this shape, in chunks of shape `chunk`, in place of an existing array.

        Raise WorkerFailedError if the disk is full.
        """
        spec = {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": f"{path}/"},
            "metadata": {
                "shape": list(shape),
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}},
                "data_type": "uint8",
                "fill_value": 0,
            },
        }
        try:
            return cls(library().open(spec, create=True, delete_existing=True).result(), path)
        except (OSError, ValueError) as error:
            raise _failure(error, path) from error

    @classmethod
    def open(cls, path: Path) -> Volume:
        """Open an array that another process has made; raise WorkerFailedError if there is none."""
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
        try:
            return cls(library().open(spec).result(), path)
        except (OSError, ValueError) as error:
            raise WorkerFailedError(
                f"{path} cannot be opened: {str(error).splitlines()[0]}",
                "Several nodes need an --output directory that they share.",
            ) from error

    @property
    def shape(self) -> tuple[int, ...]:
        """Numbers of voxels (z, y, x), after the number of channels if there are channels."""
        return tuple(self._store.shape)

    def fill(self, seed: int, part: int, parts: int) -> None:
        """Fill every `parts`-th chunk, from chunk number `part` on, with random values."""
        import numpy as np

        from gpudiag.training.jobs.volume.blocks import Blocks, Cut

        z, y, x = self.shape
        generator = np.random.default_rng((seed, part))
        with Writer(self) as writer:
            for block in Blocks((z, y, x), Cut(written=chunk_of((z, y, x)), halo=(0, 0, 0)))[part::parts]:
                writer.put(block.written, generator.integers(0, 256, block.written.shape, dtype=np.uint8))

    def read_ahead(self, wanted: Iterator[VolumeBlock], ahead: int) -> Iterator[tuple[VolumeBlock, Bytes]]:
        """Yield each block with the voxels of its seen region. Meanwhile, read the next `ahead` blocks.

        Voxels outside the volume are mirrored at the volume's edge. The edge itself is not repeated.
        """
        under_way: deque[tuple[VolumeBlock, Any]] = deque()
        shape = self.shape[-3:]  # without channels
        for block in wanted:
            z, y, x = block.seen.slices()
            inside = tuple(
                slice(max(0, axis.start), min(extent, axis.stop)) for axis, extent in zip((z, y, x), shape, strict=True)
            )
            under_way.append((block, self._store[inside].read()))
            if len(under_way) > ahead:
                yield self._arrived(*under_way.popleft())
        while under_way:
            yield self._arrived(*under_way.popleft())

    def _arrived(self, block: VolumeBlock, future: Any) -> tuple[VolumeBlock, Bytes]:
        """Wait for a block's voxels, and add mirrored voxels outside the volume."""
        import numpy as np

        read: Bytes = future.result()
        missing = [
            (max(0, -begin), max(0, end - extent))
            for begin, end, extent in zip(block.seen.begin, block.seen.end, self.shape[-3:], strict=True)
        ]
        return block, np.pad(read, missing, mode="reflect") if any(map(any, missing)) else read

    def write(self, region: Region, values: Bytes) -> Any:
        """Start to write all channels of a region. The returned future is done when all values are on disk."""
        return self._store[(..., *region.slices())].write(values)


class Writer:
    """Write regions in the background, a few at a time, and count the voxels on disk (`voxels`).

    Raises:
        WorkerFailedError: the disk is full or cannot be written to. `put` and the end of the `with` block raise this.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._under_way: deque[tuple[Region, Any]] = deque()
        self.voxels = 0

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        while self._under_way:
            if kind is None:
                self._wait()
            else:
                self._under_way.popleft()

    def put(self, region: Region, values: Bytes) -> None:
        """Start to write a region; wait if too many writes are in progress. `values` must not change any more."""
        self._under_way.append((region, self._volume.write(region, values)))
        if len(self._under_way) > _WRITES:
            self._wait()

    def _wait(self) -> None:
        region, future = self._under_way.popleft()
        try:
            future.result()
        except (OSError, ValueError) as error:
            raise _failure(error, self._volume.path, self.voxels) from error
        self.voxels += region.voxels


def chunk_of(volume: Voxels) -> Voxels:
    """Return the shape of an input volume's chunks: along each axis the smaller of `_CHUNK` and the volume."""
    z, y, x = (min(chunk, extent) for chunk, extent in zip(_CHUNK, volume, strict=True))
    return z, y, x


def _failure(error: Exception, path: Path, voxels: int | None = None) -> WorkerFailedError:
    if any(words in str(error) for words in _FULL):
        written = "" if voxels is None else f"; this process had written {voxels:,} voxels"
        return WorkerFailedError(f"the disk is full: {path} cannot be written to{written}", _ROOM)
    return WorkerFailedError(f"{path} cannot be written to: {str(error).splitlines()[0]}", "Choose another --output.")
