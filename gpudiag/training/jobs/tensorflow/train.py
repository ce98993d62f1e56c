"""Train any built-in workload under TensorFlow. The training loop uses only public features of gpudiag."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

import gpudiag
from gpudiag.errors import WorkerFailedError
from gpudiag.model.job import Job, computed_in
from gpudiag.training.jobs.tensorflow.batches import distributed_batches, pipeline
from gpudiag.training.jobs.tensorflow.setup import scaling, set_precision, use_devices
from gpudiag.training.jobs.tensorflow.step import Rounds, make_step
from gpudiag.training.models.registry import load_keras_workload, workload_entry
from gpudiag.training.models.tensorflow.perceptrons import KerasInputOnly
from gpudiag.training.models.tensorflow.workload import KerasWorkload
from gpudiag.training.strategies.registry import default_strategy, tensorflow_strategy


def train(job: Job) -> None:
    """Train until the session is complete. Each process that the launcher starts calls this function.

    Raises:
        FrameworkMissingError: TensorFlow cannot use the GPUs.
        WorkerFailedError: the strategy does not work with this model in the installed versions.
    """
    devices = use_devices(job.device, job.devices)
    kind = tensorflow_strategy(job.strategy)
    strategy = kind.make(devices)
    on_gpu = job.device == "cuda"
    entry = workload_entry(job.workload)
    batch_size = job.batch_size or entry.default_batch(on_gpu=on_gpu)
    precision = computed_in(job.precision, on_gpu=on_gpu)
    set_precision(precision)
    keras.config.set_image_data_format("channels_first" if job.memory_format == "nchw" else "channels_last")
    keras.utils.set_random_seed(0)
    workload = load_keras_workload(job.workload, on_gpu=on_gpu)
    if job.model == "trivial":
        workload = KerasInputOnly(workload)
    options = {
        "precision": precision,
        "memory_format": job.memory_format,
        "data": job.data,
        "loader_workers": _workers_text(job),
        "model": job.model,
        "compile": str(job.compile).lower(),
        "threads": os.environ.get("TF_NUM_INTRAOP_THREADS", "all"),
    }
    seed = int(os.environ.get("RANK", "0"))
    if job.model == "none":
        _time_input(workload, job, batch_size=batch_size, seed=seed, options=options)
        return
    with strategy.scope():
        model = workload.model()
        optimizer = scaling(workload.optimizer(), precision)
        optimizer.build(model.trainable_variables)
    step: Callable[[Any], Any]
    if kind.feeds_itself:  # the workers of a parameter server fetch their batches themselves

        def data() -> Any:
            return pipeline(workload, job.data, batch_size=batch_size, workers=job.loader_workers, seed=seed)

        step = rounds = Rounds(
            workload, model, optimizer, strategy, data, workers=kind.workers(devices), compiled=job.compile
        )
        batches = rounds.batches()
    else:
        step = make_step(workload, model, optimizer, strategy, compiled=job.compile)
        batches = distributed_batches(
            workload,
            job.data,
            strategy=strategy,
            devices=devices,
            batch_size=batch_size,
            workers=job.loader_workers,
            seed=seed,
        )
    with gpudiag.profile(
        workload=job.title, model=model, batch_size=batch_size, device=devices, options=options
    ) as prof:
        for batch in prof.steps(batches):
            try:
                step(batch)
            except ValueError as error:
                _explain(error, job)
                raise


def _time_input(workload: KerasWorkload, job: Job, *, batch_size: int, seed: int, options: dict[str, str]) -> None:
    """Time only the fetching of batches in host memory, without training."""
    source = pipeline(workload, job.data, batch_size=batch_size, workers=job.loader_workers, seed=seed)
    with gpudiag.profile(workload=job.title, batch_size=batch_size, device="CPU:0", options=options) as prof:
        for _ in prof.steps(source):
            pass


def _workers_text(job: Job) -> str:
    if job.data != "loader":
        return "0"
    return "auto" if job.loader_workers is None else str(job.loader_workers)


def _explain(error: ValueError, job: Job) -> None:
    """Raise WorkerFailedError with an explanation if the strategy does not work with a layer of Keras 3."""
    text: Any = str(error)
    if "AggregatingVariable" in text:
        raise WorkerFailedError(
            f"{job.strategy} does not work with {job.workload}: BatchNormalization of Keras {keras.__version__} "
            f"updates its moving averages in a way that TensorFlow {tf.__version__}'s central variables refuse",
            f"Use --strategy {default_strategy(job.framework, on_gpu=False)}, or a workload without batch "
            "normalization (mlp, vgg16, gpt, unet3d).",
        ) from error
