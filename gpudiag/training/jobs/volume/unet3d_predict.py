"""Run the workload `unet3d-predict`: the 3D U-Net of `unet3d` (93,659,931 parameters) predicts a volume on disk.

Each process has a device and a share of the volume's blocks. Reading, predicting and writing overlap: the host fetches
a batch's results from the device only after it has launched the prediction of the next batch.

First the whole volume is predicted without the profiler. The reported rate is the number of voxels divided by the time
until the last voxel is on disk. Then steps over some of the same blocks are timed and recorded like training steps.
These steps write to a second volume, which is removed at the end.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import torch

import gpudiag
from gpudiag.errors import WorkerFailedError
from gpudiag.model.job import computed_in
from gpudiag.model.run import INFERENCE_FILE, InferenceRecord, RankInference
from gpudiag.model.run_directory import write_json
from gpudiag.training.jobs.precision import Arithmetic, use_device
from gpudiag.training.jobs.volume.blocks import CPU_CUT, CPU_VOLUME, GPU_CUT, GPU_VOLUME, Blocks
from gpudiag.training.jobs.volume.storage import (
    PREDICTION,
    SCRATCH,
    VOLUME,
    Volume,
    Writer,
    check_space,
    chunk_of,
    remove_volumes,
)
from gpudiag.training.loop.launched import launched
from gpudiag.training.models.pytorch.unet3d import OUTPUTS, UNet3dTraining
from gpudiag.training.strategies.pytorch_strategy import gather_objects
from gpudiag.training.strategies.registry import load_strategy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from torch import Tensor, nn

    from gpudiag.model.job import Job
    from gpudiag.training.jobs.volume.blocks import VolumeBlock
    from gpudiag.training.jobs.volume.storage import Bytes

    Batch = list[tuple[VolumeBlock, Bytes]]

#: Number of blocks of each process that the unprofiled and recorded steps repeat.
_REPEATED_BLOCKS = 8

#: Number of blocks that are read ahead during a prediction.
_AHEAD = 2

#: Predictions from 0.0 to 1.0 are written as integers from 1 to 255, so that 0 means "not written".
_LEVELS = 254


class UNet3dPrediction(UNet3dTraining):
    """The workload `unet3d` with blocks as samples."""

    def samples(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return uint8[count, 1, z, y, x] with the size of a block and its halo, and targets that nothing uses."""
        shape = (GPU_CUT if self.on_gpu else CPU_CUT).seen
        volumes = torch.randint(0, 256, (count, 1, *shape), dtype=torch.uint8, generator=generator)
        return volumes, torch.zeros(count, OUTPUTS, 1, 1, 1, dtype=torch.uint8)


class Predictor:
    """Predict batches of blocks. Fetch and write the results of a batch after the next batch has been launched.

    `workload` converts inputs, and `arithmetic` sets the precision. `memory_format` is that of the model's input.
    """

    def __init__(
        self,
        model: nn.Module,
        workload: UNet3dTraining,
        arithmetic: Arithmetic,
        device: torch.device,
        memory_format: torch.memory_format,
    ) -> None:
        self._model, self._workload = model, workload
        self._arithmetic, self._device = arithmetic, device
        self._format = memory_format
        self._on_gpu = device.type == "cuda"
        self._under_way: deque[tuple[list[VolumeBlock], list[Tensor], Any]] = deque()

    @torch.inference_mode()
    def predict(self, batch: Batch, writer: Writer) -> None:
        """Launch the prediction of a batch, and then pass the previous batch's results to the writer."""
        with gpudiag.range("forward"):
            inputs = torch.stack([torch.from_numpy(seen) for _, seen in batch]).unsqueeze(1)
            if self._on_gpu:
                inputs = inputs.pin_memory().to(self._device, non_blocking=True)
            x = self._workload.prepare(inputs).contiguous(memory_format=self._format)
            with self._arithmetic.forward():
                output = self._model(x)
            # Add 1 to skip "not written", and 0.5 because `to` truncates.
            levels = output.float().mul_(_LEVELS).add_(1.5).to(torch.uint8)
            # Only the region that a block writes is fetched.
            results = [
                self._fetched(levels[index][(..., *block.written.slices(block.seen.begin))])
                for index, (block, _) in enumerate(batch)
            ]
        done: Any = torch.cuda.Event() if self._on_gpu else None  # type: ignore[no-untyped-call]  # untyped in torch
        if done is not None:
            done.record(torch.cuda.current_stream(self._device))
        self._under_way.append(([block for block, _ in batch], results, done))
        if len(self._under_way) > 1:
            self._write_oldest(writer)

    def predict_all(self, batches: Iterable[Batch], into: Volume) -> int:
        """Predict all batches, write the results, and return the number of written voxels."""
        with Writer(into) as writer:
            for batch in batches:
                self.predict(batch, writer)
            self.finish(writer)
        return writer.voxels

    def finish(self, writer: Writer) -> None:
        """Write the results that are still being computed."""
        while self._under_way:
            self._write_oldest(writer)

    def _write_oldest(self, writer: Writer) -> None:
        finished, results, done = self._under_way.popleft()
        if done is not None:
            done.synchronize()
        with gpudiag.range("write"):
            for block, result in zip(finished, results, strict=True):
                writer.put(block.written, result.numpy())

    def _fetched(self, result: Tensor) -> Tensor:
        """Start to copy a result to new host memory, and return this memory."""
        host = torch.empty(result.shape, dtype=result.dtype, pin_memory=self._on_gpu)
        return host.copy_(result, non_blocking=True)


def predict(job: Job) -> None:
    """Predict the job's volume, and then time and record steps. Each process calls this function.

    Raises:
        UsageError: the volume is smaller than a block.
        WorkerFailedError: the disk is full or cannot be written to.
        FrameworkMissingError: tensorstore is missing.
    """
    started = launched()
    if started is None:
        raise WorkerFailedError("volumes are predicted in processes that gpudiag starts", "Run `gpudiag profile`.")
    device = use_device(job.device)
    prediction = VolumePrediction(job, device, started.run_dir)
    strategy = load_strategy(job.strategy, device)
    strategy.open()
    try:
        prediction.run(torch.distributed.get_rank(), torch.distributed.get_world_size())
    finally:
        strategy.close()


class VolumePrediction:
    """Predict one process's share of a volume. The volumes are in the run directory."""

    def __init__(self, job: Job, device: torch.device, run_dir: Path) -> None:
        on_gpu = device.type == "cuda"
        self._job, self._device, self._run_dir = job, device, run_dir
        self._cut = GPU_CUT if on_gpu else CPU_CUT
        self._shape = job.volume or (GPU_VOLUME if on_gpu else CPU_VOLUME)
        self._blocks = Blocks(self._shape, self._cut)
        self._batch_size = job.batch_size or 1
        self._precision = computed_in(job.precision, on_gpu=on_gpu)

    def run(self, rank: int, world: int) -> None:
        """Predict the share of rank `rank` of `world`. Write `INFERENCE_FILE`, record steps, and remove the volumes."""
        volume, prediction, scratch = (self._run_dir / name for name in (VOLUME, PREDICTION, SCRATCH))
        own_blocks = range(rank, len(self._blocks), world)
        # A process without blocks of its own repeats blocks of other processes, so that it has steps too.
        repeated = [self._blocks[number] for number in (own_blocks or range(len(self._blocks)))[:_REPEATED_BLOCKS]]
        voxels = math.prod(self._shape)
        # One byte per value: the input volume, the prediction, and the repeated blocks of each process.
        check_space(
            self._run_dir, voxels + OUTPUTS * (voxels + world * sum(block.written.voxels for block in repeated))
        )
        _barrier()  # writing changes the free space, so all processes check it before any process writes
        try:
            if rank == 0:
                (self._run_dir / INFERENCE_FILE).unlink(missing_ok=True)
                Volume.create(volume, self._shape, chunk_of(self._shape))
                for path in (prediction, scratch):
                    Volume.create(path, (OUTPUTS, *self._shape), (OUTPUTS, *self._cut.written))
            _barrier()
            source = Volume.open(volume)
            source.fill(seed=0, part=rank, parts=world)
            _barrier()
            predictor, model = self._predictor()
            # Predict a batch before the measurement, so that autotuning and first allocations are not measured.
            predictor.predict_all(self._batches(source, iter(repeated[: self._batch_size])), Volume.open(scratch))
            _barrier()
            began_s = time.perf_counter()
            written = predictor.predict_all(
                self._batches(source, map(self._blocks.__getitem__, own_blocks)), Volume.open(prediction)
            )
            share = RankInference(
                rank=rank, blocks=len(own_blocks), voxels=written, seconds=time.perf_counter() - began_s
            )
            shares = gather_objects(share)
            if rank == 0:
                write_json(self._run_dir / INFERENCE_FILE, self._figures(shares))
            self._record(model, predictor, self._batches(source, itertools.cycle(repeated)), Volume.open(scratch))
            _barrier()
        except BaseException:
            remove_volumes(self._run_dir)  # the launcher ends the other processes
            raise
        if rank == 0:
            remove_volumes(self._run_dir, but=PREDICTION if self._job.keep_prediction else None)

    def _predictor(self) -> tuple[Predictor, nn.Module]:
        """Return a predictor with the job's precision and memory format, and its uncompiled model."""
        torch.manual_seed(0)
        workload = UNet3dPrediction(on_gpu=self._device.type == "cuda")
        channels_last = self._job.memory_format == "nhwc"
        memory_format = workload.channels_last if channels_last else torch.contiguous_format
        bare = workload.model().to(self._device).eval()
        bare = bare.to(memory_format=memory_format)  # type: ignore[call-overload]  # missing from torch's stubs
        model = cast("nn.Module", torch.compile(bare)) if self._job.compile else bare
        arithmetic = Arithmetic(self._precision, self._device)
        return Predictor(model, workload, arithmetic, self._device, memory_format), bare

    def _batches(self, volume: Volume, wanted: Iterator[VolumeBlock]) -> Iterator[Batch]:
        """Yield batches of blocks with the voxels of their seen regions. The last batch may be smaller."""
        ahead = volume.read_ahead(wanted, _AHEAD * self._batch_size)
        while batch := list(itertools.islice(ahead, self._batch_size)):
            yield batch

    def _record(self, model: nn.Module, predictor: Predictor, batches: Iterator[Batch], into: Volume) -> None:
        """Time and record steps in a session. Each step predicts one batch and writes into the volume `into`."""
        options = {
            "precision": self._precision,
            "memory_format": self._job.memory_format,
            "compile": str(self._job.compile).lower(),
            "volume": ",".join(map(str, self._shape)),
            "threads": str(torch.get_num_threads()),
        }
        with (
            gpudiag.profile(model=model, batch_size=self._batch_size, device=self._device, options=options) as prof,
            Writer(into) as writer,
        ):
            for batch in prof.steps(batches):
                predictor.predict(batch, writer)
            predictor.finish(writer)

    def _figures(self, shares: list[RankInference]) -> InferenceRecord:
        """Combine the results of all ranks. Raise WorkerFailedError if the numbers of written voxels are wrong."""
        voxels = sum(share.voxels for share in shares)
        if voxels != math.prod(self._shape):
            raise WorkerFailedError(f"{voxels:,} voxels were written of {math.prod(self._shape):,}")
        seconds = max(share.seconds for share in shares)
        return InferenceRecord(
            volume=self._shape,
            written=self._cut.written,
            seen=self._cut.seen,
            blocks=len(self._blocks),
            voxels=voxels,
            predicted=len(self._blocks) * math.prod(self._cut.seen),
            channels=OUTPUTS,
            seconds=seconds,
            mvox_per_s=voxels / seconds / 1e6,
            ranks=tuple(shares),
        )


def _barrier() -> None:
    """Wait for all processes."""
    torch.distributed.barrier()
