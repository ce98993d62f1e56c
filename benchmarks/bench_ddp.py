"""Compare the step time of gpudiag's strategy `nccl` with bare DistributedDataParallel, alternately in one run.

    python benchmarks/bench_ddp.py [--output FILE.json] [--models resnet50,gpt,mlp] [--rounds 9]

Each process trains three copies of the model on a batch that is on the device. One copy uses plain DDP, one uses the
strategy `nccl`, and one uses DDP with a Python communication hook from the start. gpudiag needs a hook to name the
communication of each bucket. The copies train in turns of some steps, in a different order each round. The output is
the median step time of each copy, and its ratio to bare DDP with a 95 % interval (Student's t). The interval is
computed from the ratio of each round, because the machine changes little within a round. Without GPUs, small models run
in CPU processes with gloo.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from gpudiag.training.jobs.precision import Arithmetic
from gpudiag.training.models.registry import load_workload, workload_entry
from gpudiag.training.strategies.registry import load_strategy

#: 97.5 % quantiles of Student's t by degrees of freedom; for other degrees of freedom, 2.1 is used.
T_975 = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 14: 2.145, 19: 2.093}
#: Approximate duration of a turn in seconds.
TURN_S = 0.4


class Trainer:
    """One copy of a model with its optimizer and a batch.

    Args:
        name: the copy's kind of communication: `bare` (plain DDP), `gpudiag` (its strategy) or `python hook`.
        workload_name: the model, a built-in workload of gpudiag.
        device: the device of this rank.
    """

    def __init__(self, name: str, workload_name: str, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        torch.manual_seed(0)
        workload = load_workload(workload_name, on_gpu=on_gpu)
        bare = workload.model().to(device)
        self.model: nn.Module
        if name == "gpudiag":
            self.strategy = load_strategy("nccl" if on_gpu else "gloo", device)
            self.model = self.strategy.wrap(bare)
        else:
            self.strategy = load_strategy("independent", device)  # does nothing; DDP communicates
            wrapped = DistributedDataParallel(bare, device_ids=[device] if on_gpu else None)
            if name == "python hook":
                wrapped.register_comm_hook(None, allreduce_hook)
            self.model = wrapped
        self.optimizer = workload.optimizer(self.model.parameters())
        self.arithmetic = Arithmetic("tf32" if on_gpu else "fp32", device)
        entry = workload_entry(workload_name)
        size = entry.default_batch(on_gpu=on_gpu)
        inputs, target = workload.samples(size, torch.Generator().manual_seed(dist.get_rank()))
        self.inputs, self.target = workload.prepare(inputs.to(device)), target.to(device)
        self.workload, self.device = workload, device

    def step(self) -> None:
        """Run one training step like gpudiag's training loop."""
        loss = self.workload.loss(self.model(self.inputs), self.target)
        self.arithmetic.backward(loss)
        self.strategy.exchange(self.model)
        self.arithmetic.step(self.optimizer)
        self.optimizer.zero_grad(set_to_none=True)

    def seconds(self, steps: int) -> float:
        """Train `steps` steps; return seconds per step on the slowest rank."""
        self.settle()
        began = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.settle()
        worst = torch.tensor([(time.perf_counter() - began) / steps], dtype=torch.float64, device=self.device)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        return float(worst)

    def settle(self) -> None:
        """Wait until the device of this rank is idle and all other ranks have arrived here."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        dist.barrier()


def measure(workload: str, rounds: int, device: torch.device) -> dict[str, Any]:
    """Measure the three copies of one workload.

    Returns:
        the settings, and for each copy: `ms` (median step time), `ratio` (mean ratio to bare DDP), `ci95` (half the
        ratio's interval) and `all` (step time in ms of each round).
    """
    trainers = {name: Trainer(name, workload, device) for name in ("bare", "gpudiag", "python hook")}
    for trainer in trainers.values():
        trainer.seconds(5)  # warm-up
    steps = max(3, math.ceil(TURN_S / trainers["bare"].seconds(5)))
    times: dict[str, list[float]] = {name: [] for name in trainers}
    order = list(trainers)
    for _ in range(rounds):
        for name in order:
            times[name].append(trainers[name].seconds(steps) * 1e3)
        order = order[1:] + order[:1]
    found: dict[str, Any] = {"workload": workload, "steps_per_turn": steps, "rounds": rounds}
    for name, series in times.items():
        ratios = [mine / bare for mine, bare in zip(series, times["bare"], strict=True)]
        spread = statistics.stdev(ratios) / math.sqrt(len(ratios)) * T_975.get(len(ratios) - 1, 2.1)
        found[name] = {
            "ms": statistics.median(series),
            "ratio": statistics.fmean(ratios),
            "ci95": spread,
            "all": series,
        }
    return found


def worker(options: argparse.Namespace) -> None:
    """Run one process of the measurement; rank 0 prints the results.

    `options.worker` is the path of a file through which the processes find each other.
    """
    rank = int(os.environ["RANK"])
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"file://{options.worker}",
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        device_id=device if on_gpu else None,
    )
    results = [measure(name, options.rounds, device) for name in options.models.split(",")]
    if rank == 0:
        print(f"RESULT {json.dumps(results)}", flush=True)
    dist.destroy_process_group()


def main() -> int:
    """Start the processes, and show the results of rank 0."""
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="resnet50,gpt,mlp" if on_gpu else "resnet20-cifar,mlp")
    parser.add_argument("--rounds", type=int, default=9, help="at least 5")
    parser.add_argument("--output", type=Path, help="write all figures there as JSON")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return 0
    ranks = torch.cuda.device_count() if on_gpu else 2
    meeting = tempfile.TemporaryDirectory(prefix="bench-")
    command = [sys.executable, __file__, "--worker", f"{meeting.name}/meeting"]
    command += ["--models", options.models, "--rounds", str(options.rounds)]
    processes = []
    for rank in range(ranks):
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "GLOO_SOCKET_IFNAME": "lo"}
        output = subprocess.PIPE if rank == 0 else None
        processes.append(subprocess.Popen(command, stdout=output, text=True, env={**os.environ, **variables}))
    try:
        text, _ = processes[0].communicate(timeout=600)
    finally:
        for process in processes:
            process.kill()
        meeting.cleanup()
    lines = [line.removeprefix("RESULT ") for line in text.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise SystemExit("the processes ended without a result; see their messages above")
    answer = json.loads(lines[0])
    print(f"{ranks} {'GPUs' if on_gpu else 'CPU processes'}, PyTorch {torch.__version__}, {options.rounds} rounds")
    print("| workload | bare DDP ms | gpudiag nccl ms | ratio | Python hook ms | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for row in answer:
        ours, hook = row["gpudiag"], row["python hook"]
        cells = [row["workload"], f"{row['bare']['ms']:.2f}"]
        for copy in (ours, hook):
            cells += [f"{copy['ms']:.2f}", f"{copy['ratio']:.4f} ± {copy['ci95']:.4f}"]
        print(f"| {' | '.join(cells)} |")
    if options.output:
        options.output.write_text(json.dumps(answer, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
