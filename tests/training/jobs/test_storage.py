"""Test that volumes on disk are read as written, mirrored at the edges, and that a full disk is an error."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpudiag.errors import WorkerFailedError
from gpudiag.training.jobs.volume.blocks import Blocks, Cut
from gpudiag.training.jobs.volume.storage import Volume, Writer, check_space, chunk_of

if TYPE_CHECKING:
    from pathlib import Path

SHAPE = (9, 20, 31)
CUT = Cut(written=(4, 9, 9), halo=(1, 3, 3))


@pytest.fixture
def values() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(1, 256, SHAPE, dtype=np.uint8)


def test_read_returns_written_voxels_mirrored_at_the_edges(
    tmp_path: Path, values: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
) -> None:
    volume = Volume.create(tmp_path / "v.zarr", SHAPE, (4, 8, 8))
    with Writer(volume) as writer:
        for block in Blocks(SHAPE, CUT):
            writer.put(block.written, values[block.written.slices()])
    assert writer.voxels == values.size
    halo = CUT.halo
    padded = np.pad(values, [(width, width) for width in halo], mode="reflect")
    wanted = Blocks(SHAPE, CUT)
    got = list(Volume.open(tmp_path / "v.zarr").read_ahead(iter(wanted), ahead=2))
    assert [block for block, _ in got] == list(wanted)
    for block, seen in got:
        z, y, x = (begin + width for begin, width in zip(block.seen.begin, halo, strict=True))
        depth, height, width = CUT.seen
        assert np.array_equal(seen, padded[z : z + depth, y : y + height, x : x + width])


def test_each_block_of_a_prediction_is_one_file(tmp_path: Path) -> None:
    volume = Volume.create(tmp_path / "p.zarr", (3, *SHAPE), (3, *CUT.written))
    with Writer(volume) as writer:
        for block in Blocks(SHAPE, CUT):
            writer.put(block.written, np.full((3, *block.written.shape), 7, dtype=np.uint8))
    files = [path for path in (tmp_path / "p.zarr" / "c").rglob("*") if path.is_file()]
    assert len(files) == len(Blocks(SHAPE, CUT))
    described = json.loads((tmp_path / "p.zarr" / "zarr.json").read_text())
    assert (described["zarr_format"], described["shape"]) == (3, [3, *SHAPE])


def test_processes_fill_disjoint_parts_of_a_volume(tmp_path: Path) -> None:
    shape = (40, 300, 300)
    Volume.create(tmp_path / "v.zarr", shape, chunk_of(shape))
    for part in range(3):
        Volume.open(tmp_path / "v.zarr").fill(seed=0, part=part, parts=3)
    files = [path for path in (tmp_path / "v.zarr" / "c").rglob("*") if path.is_file()]
    assert len(files) == 2 * 2 * 2
    (_, everything), *_ = Volume.open(tmp_path / "v.zarr").read_ahead(
        iter(Blocks(shape, Cut(written=shape, halo=(0, 0, 0)))), ahead=1
    )
    assert 126 < everything.mean() < 129


def test_missing_volume_suggests_a_shared_directory(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailedError, match=r"v\.zarr cannot be opened") as caught:
        Volume.open(tmp_path / "v.zarr")
    assert "share" in caught.value.hint


def test_unwritable_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorkerFailedError, match=r"v\.zarr cannot be written to"):
        Volume.create(tmp_path / "file" / "v.zarr", SHAPE, (4, 8, 8))


def test_too_little_disk_space_is_an_error_before_writing(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailedError, match=r"the volumes need 1000000.0 GB in .* GB are free") as caught:
        check_space(tmp_path, 10**15)
    assert "--volume" in caught.value.hint


FULL = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    import numpy as np
    from gpudiag.errors import WorkerFailedError
    from gpudiag.training.jobs.volume.blocks import Cut, Blocks
    from gpudiag.training.jobs.volume.storage import Volume, Writer

    shape = (8, 1024, 1024)
    volume = Volume.create(Path(sys.argv[1]) / "v.zarr", shape, (1, 1024, 1024))
    try:
        with Writer(volume) as writer:
            for block in Blocks(shape, Cut(written=(1, 1024, 1024), halo=(0, 0, 0))):
                writer.put(block.written, np.ones(block.written.shape, dtype=np.uint8))
    except WorkerFailedError as error:
        print(error, error.hint, sep="\\n")
    """
)


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1) to mount a small disk")
@pytest.mark.processes
def test_disk_that_fills_up_is_an_error(tmp_path: Path) -> None:
    """Use a file system of 4 MB, in a separate mount namespace."""
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    mounted = ["sh", "-c", 'mount -t tmpfs -o size=4m none "$0" && exec "$@"', str(tmp_path)]
    if subprocess.run([*alone, *mounted, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system lets no user mount a disk of their own")
    result = subprocess.run(
        [*alone, *mounted, sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    message, hint = result.stdout.splitlines()
    assert message.startswith(f"the disk is full: {tmp_path}/v.zarr cannot be written to; this process had written")
    assert "larger disk" in hint
