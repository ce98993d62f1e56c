"""Test that the 3D U-Net has the right shape and loss, and that prediction in blocks writes its output."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from gpudiag.training.jobs.precision import Arithmetic
from gpudiag.training.jobs.volume.blocks import Blocks, Cut
from gpudiag.training.jobs.volume.storage import Volume
from gpudiag.training.jobs.volume.unet3d_predict import Predictor
from gpudiag.training.models.pytorch.unet3d import UNet3d, UNet3dTraining, dice_loss

if TYPE_CHECKING:
    from pathlib import Path

    from gpudiag.training.jobs.volume.blocks import VolumeBlock

pytestmark = pytest.mark.long

CPU = torch.device("cpu")
SHAPE = (7, 40, 40)


def test_output_keeps_shape_and_is_between_0_and_1() -> None:
    output = UNet3d((2, 3, 4, 5))(torch.rand(2, 1, 3, 27, 54))
    assert output.shape == (2, 3, 3, 27, 54)
    assert ((output > 0) & (output < 1)).all()


def test_dice_loss_of_equal_and_disjoint_volumes() -> None:
    target = torch.randint(0, 2, (2, 3, 4, 9, 9), dtype=torch.uint8)
    assert dice_loss(target.float(), target).item() == pytest.approx(-3)
    assert dice_loss(1 - target.float(), target).item() == pytest.approx(0)


def test_dice_loss_equals_manual_calculation() -> None:
    """With prediction p = (1, 0.5) and target t = (1, 0) the loss is -2 * 1 / (1.25 + 1) per channel."""
    output = torch.tensor([1.0, 0.5]).reshape(1, 1, 1, 1, 2)
    target = torch.tensor([1, 0]).reshape(1, 1, 1, 1, 2)
    assert dice_loss(output, target).item() == pytest.approx(-2 / 2.25)


def test_dice_loss_sums_half_precision_in_single_precision() -> None:
    ones = torch.ones(1, 3, 4, 512, 512, dtype=torch.float16)
    assert dice_loss(ones, ones).item() == pytest.approx(-3)


def predicted(tmp_path: Path, cut: Cut, batch_size: int, memory_format: torch.memory_format) -> tuple[UNet3d, Volume]:
    """Predict a random volume in batches of blocks; return the small network and the prediction."""
    torch.manual_seed(0)
    model = UNet3d((2, 3, 4, 5)).eval()
    source = Volume.create(tmp_path / "volume.zarr", SHAPE, (4, 16, 16))
    source.fill(seed=0, part=0, parts=1)
    prediction = Volume.create(tmp_path / "prediction.zarr", (3, *SHAPE), (3, *cut.written))
    predictor = Predictor(model, UNet3dTraining(on_gpu=False), Arithmetic("fp32", CPU), CPU, memory_format)
    blocks = source.read_ahead(iter(Blocks(SHAPE, cut)), ahead=2)
    batches = iter(lambda: list(itertools.islice(blocks, batch_size)), [])
    assert predictor.predict_all(batches, prediction) == np.prod(SHAPE)
    return model, prediction


def array(volume: Volume) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.asarray(volume._store.read().result())


@pytest.mark.parametrize("batch_size", [1, 4])  # with 18 blocks, the last batch of four has two blocks
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last_3d])
def test_written_voxels_equal_network_output_of_their_block(
    tmp_path: Path, batch_size: int, memory_format: torch.memory_format
) -> None:
    cut = Cut(written=(4, 18, 18), halo=(1, 18, 18))
    assert len(Blocks(SHAPE, cut)) == 18
    model, prediction = predicted(tmp_path, cut, batch_size, memory_format)
    written = array(prediction)
    assert (written > 0).all()
    source = Volume.open(tmp_path / "volume.zarr")
    for block, seen in source.read_ahead(iter(Blocks(SHAPE, cut)), ahead=1):
        expected = network(model, seen)[(..., *block.written.slices(block.seen.begin))]
        difference = written[(slice(None), *block.written.slices())].astype(int) - expected
        # Values differ by rounding, because the order of sums differs between batches.
        assert abs(difference).max() <= 1


def network(
    model: UNet3d, seen: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    with torch.inference_mode():
        output = model(torch.from_numpy(seen)[None, None].float() / 255)[0]
    return np.floor(np.asarray(output) * 254 + 1.5).astype(np.int64)


def test_volume_of_one_block_equals_network_on_whole_volume(tmp_path: Path) -> None:
    cut = Cut(written=SHAPE, halo=(1, 7, 7))
    model, prediction = predicted(tmp_path, cut, 1, torch.contiguous_format)
    whole: VolumeBlock = Blocks(SHAPE, cut)[0]
    ((_, seen),) = Volume.open(tmp_path / "volume.zarr").read_ahead(iter([whole]), ahead=1)
    expected = network(model, seen)[:, 1:-1, 7:-7, 7:-7]
    assert abs(array(prediction).astype(int) - expected).max() <= 1
