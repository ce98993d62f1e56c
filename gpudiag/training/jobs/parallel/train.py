"""Train the workload `gpt` divided over processes."""

from __future__ import annotations

import torch

import gpudiag
from gpudiag.model.job import Job, computed_in
from gpudiag.model.run import ParallelLayout
from gpudiag.training.jobs.data.batch_client import open_batches
from gpudiag.training.jobs.data.batches import DevicePrefetch
from gpudiag.training.jobs.parallel.sizes import gpt_sizes
from gpudiag.training.jobs.parallel.step import ParallelGpt
from gpudiag.training.jobs.precision import Arithmetic, use_device
from gpudiag.training.models.registry import load_workload
from gpudiag.training.strategies.registry import load_strategy

#: Number of sequences per microbatch, on GPUs and on CPUs.
_GPU_SEQUENCES, _CPU_SEQUENCES = 4, 1


def train_parallel(job: Job, layout: ParallelLayout) -> None:
    """Train until the session is complete. Each process calls this function. `gpudiag profile` has checked `job`."""
    on_gpu = job.device == "cuda"
    device = use_device(job.device)
    sizes = gpt_sizes(on_gpu=on_gpu)
    sequences = job.batch_size or layout.microbatches * (_GPU_SEQUENCES if on_gpu else _CPU_SEQUENCES)
    precision = computed_in(job.precision, on_gpu=on_gpu)
    Arithmetic(precision, device)  # sets how matrix products round
    workers = job.loader_workers if job.loader_workers is not None else 2 if on_gpu else 0
    strategy = load_strategy(job.strategy, device)  # only opens and closes the process group
    strategy.open()
    try:
        workload = load_workload(job.workload, on_gpu=on_gpu)
        model = ParallelGpt(
            layout,
            sizes,
            device,
            sharded=job.strategy == "fsdp",
            make_optimizer=workload.optimizer,
            bf16=precision == "bf16",
        )
        options = {
            "precision": precision,
            "data": job.data,
            "loader_workers": str(workers if job.data in {"loader", "zmq"} else 0),
            "prefetch": str(job.prefetch).lower(),
            "threads": str(torch.get_num_threads()),
            "sequences_per_replica": str(sequences),
        }
        seed = model.mesh.batch_index  # processes with the same index train on the same batches
        # Several processes share a batch. If this leaves no whole number of sequences per process, record none.
        per_device, rest = divmod(sequences * layout.dp * layout.ep, layout.processes)
        with (
            open_batches(
                job.workload, workload, job.data, batch_size=sequences, workers=workers, device=device, seed=seed
            ) as source,
            gpudiag.profile(
                workload=job.title,
                model=torch.nn.ModuleList(model.parts),
                batch_size=None if rest else per_device,
                device=device,
                options=options,
            ) as prof,
        ):
            for tokens, targets in prof.steps(DevicePrefetch(source, device) if job.prefetch else source):
                # On CPUs the workload's vocabulary is larger than the model's.
                model.train(
                    *(batch.to(device, non_blocking=True).remainder(sizes.vocabulary) for batch in (tokens, targets))
                )
        del model  # before the process group closes, because the model's buffers depend on the group
    finally:
        strategy.close()
