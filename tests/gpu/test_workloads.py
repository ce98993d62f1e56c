"""Test workloads and data modes on real GPUs.

    pytest tests/gpu/test_workloads.py -m "gpu or multigpu"

The tests take about four minutes on 4 GPUs of 80 GB or more. `--data zmq` needs pyzmq, and `unet3d-predict` needs
tensorstore; without them these tests are skipped.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest

from gpudiag.machine.inventory.gather import gather_inventory
from gpudiag.model.job import Precision
from gpudiag.training.models.registry import WORKLOADS, load_workload

if TYPE_CHECKING:
    import torch

GPUS = sum(gpu.visible for gpu in gather_inventory().gpus)
DEVICES = min(GPUS, 4)
ROOT = Path(__file__).parents[2]
TRAINED = [name for name, entry in WORKLOADS.items() if entry.trains]

needs_gpu = pytest.mark.skipif(GPUS < 1, reason="there is no NVIDIA GPU")
needs_gpus = pytest.mark.skipif(GPUS < 2, reason="there are not two NVIDIA GPUs")


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed")


def run(run_dir: Path, *words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a job to its end; return its analysis and run record."""
    command = [sys.executable, "-m", "gpudiag", "profile", *words, "--output", str(run_dir), "--json", "--no-probe"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=280, check=False)
    logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in (run_dir / "logs").glob("*.log"))
    assert result.returncode == 0, f"{result.stderr}\n{logs}"
    record = json.loads((run_dir / "run.json").read_text())
    assert record["status"] == "complete"
    return json.loads(result.stdout), record


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize("name", TRAINED)
def test_each_workload_trains_in_each_precision_and_layout(name: str, precision: Precision) -> None:
    import torch

    from gpudiag.training.jobs.precision import Arithmetic

    device = torch.device("cuda", 0)
    workload = load_workload(name, on_gpu=True)
    layouts = (
        (torch.contiguous_format, workload.channels_last) if WORKLOADS[name].images else (torch.contiguous_format,)
    )
    for layout in layouts:
        torch.manual_seed(0)
        model = workload.model().to(device)
        model = model.to(memory_format=layout)  # type: ignore[call-overload]  # missing from torch's stubs
        optimizer = workload.optimizer(model.parameters())
        arithmetic = Arithmetic(precision, device)
        count = 1 if name == "unet3d" else 4
        inputs, target = (part.to(device) for part in workload.samples(count, torch.Generator().manual_seed(0)))
        before = [parameter.detach().clone() for parameter in model.parameters()]
        for _ in range(5):  # gradient scaling skips the first updates
            with arithmetic.forward():
                x = workload.prepare(inputs)
                if layout is not torch.contiguous_format:
                    x = x.contiguous(memory_format=layout)
                loss = workload.loss(model(x), target)
            arithmetic.backward(loss)
            arithmetic.step(optimizer)
            optimizer.zero_grad(set_to_none=True)
        assert math.isfinite(float(loss.detach()))
        changed = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
        # In half precision the sum may overflow at the initial scale.
        assert any(changed) or precision == "fp16"
        assert all(parameter.isfinite().all() for parameter in model.parameters())
    Arithmetic("fp32", device)
    del model, optimizer, before, loss
    torch.cuda.empty_cache()  # free memory for the processes of other tests


@pytest.mark.gpu
@needs_gpu
def test_prefetched_batches_are_complete_when_used() -> None:
    import torch

    from gpudiag.training.jobs.data.batches import DevicePrefetch

    device = torch.device("cuda", 0)
    made = [
        (torch.full((size, 1 << 18), number, dtype=torch.uint8).pin_memory(), torch.full((size,), number).pin_memory())
        for number, size in enumerate([64] * 12 + [17])
    ]
    busy = torch.randn(4096, 4096, device=device)
    seen: list[torch.Tensor] = []
    for inputs, target in DevicePrefetch(made, device):
        for _ in range(5):
            busy = busy @ busy / 4096  # delay the reader until the next copy has arrived
        seen.append(((inputs == target[:, None].to(torch.uint8)).all() & (target == len(seen)).all()).clone())
    assert torch.stack(seen).all()
    assert len(seen) == 13


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(
    "words",
    [
        ("--data", "device"),
        ("--data", "host"),
        ("--data", "host", "--prefetch"),
        ("--data", "loader", "--prefetch"),
        pytest.param(("--data", "zmq"), marks=needs("zmq")),
        pytest.param(("--data", "zmq", "--loader-workers", "4", "--prefetch"), marks=needs("zmq")),
        ("--model", "trivial", "--strategy", "independent"),
        ("--model", "none"),
    ],
    ids=" ".join,
)
def test_each_data_mode_trains(tmp_path: Path, words: tuple[str, ...]) -> None:
    short = ("--devices", "1", "--steps", "20", "--precision", "bf16", "--memory-format", "nhwc")
    analysis, record = run(tmp_path, "resnet50", *short, *words)
    options = dict(itertools.pairwise(words))
    if "--data" in options:
        assert record["options"]["data"] == options["--data"]
    (device,) = analysis["devices"]
    assert sum(device["buckets_ms"].values()) == pytest.approx(device["step_ms"], rel=1e-6)
    if options.get("--model") == "none":
        assert device["buckets_ms"]["input"] > 0.5 * device["step_ms"]


@pytest.mark.multigpu
@needs_gpus
def test_unet_trains_on_volumes_of_published_shape(tmp_path: Path) -> None:
    words = ("--devices", str(DEVICES), "--precision", "bf16", "--data", "host", "--steps", "10")
    _, record = run(tmp_path, "unet3d", *words)
    assert record["model"]["parameters"] == 93_659_931
    assert record["batch_size_per_device"] == 1


@pytest.mark.multigpu
@needs_gpus
@needs("tensorstore")
def test_volume_is_predicted_on_all_gpus(tmp_path: Path) -> None:
    import numpy as np

    from gpudiag.training.jobs.volume.storage import Volume

    volume = (70, 1200, 1200)
    words = ("--devices", str(DEVICES), "--precision", "bf16", "--steps", "5", "--keep-prediction")
    run(tmp_path, "unet3d-predict", "--volume", ",".join(map(str, volume)), *words)
    figures = json.loads((tmp_path / "inference.json").read_text())
    assert figures["seen"] == [65, 675, 675]
    assert figures["blocks"] == 2 * 3 * 3
    assert sum(rank["voxels"] for rank in figures["ranks"]) == math.prod(volume)
    written = np.asarray(Volume.open(tmp_path / "prediction.zarr")._store.read().result())
    assert (written > 0).all()  # 0 marks elements that were never written
