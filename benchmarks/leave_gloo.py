"""How often two processes of DDP under gloo hang when they are done, by what goes first: model or process group.

    python benchmarks/leave_gloo.py [--seconds 120] [--at-once 3]

A reducer that outlives its process group ends that group's threads with the interpreter's lock held, and one of them
that still lets go of an all-reduce waits for that lock. `model-last` is the usual script, `model-first` lets the model
go before it leaves, `gpudiag` is what `gpudiag profile --strategy gloo` trains with. Several jobs at once keep the
cores busy; one that has not ended after a minute is taken to hang, and is ended.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch
import torch._dynamo  # DDP would import it in each process
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpudiag.training.strategies.registry import load_strategy

WAYS = ("model-last", "model-first", "gpudiag")
STEPS = 40
#: A job on two busy cores takes about 5 s.
HANGS_S = 60.0


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))


def steps(model: nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(16, 32)).square().mean().backward()
        optimizer.step()


def train(way: str) -> None:
    """A rank of the job, which has joined the other."""
    if way == "gpudiag":
        strategy = load_strategy("gloo", torch.device("cpu"))
        steps(strategy.wrap(network()))
        strategy.close()
        return
    model = DistributedDataParallel(network())
    steps(model)
    if way == "model-first":
        del model
    dist.destroy_process_group()


def rank_of(way: str, rank: int, meeting: Path) -> int:
    """Start a rank; its process."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        torch.manual_seed(rank)
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
        train(way)
        code = 0
    except Exception:  # noqa: BLE001  # a rank must not go on with what its parent does
        traceback.print_exc()
    finally:
        os._exit(code)  # what is looked for has happened by then


def still_runs(pid: int) -> bool:
    """Does this rank? Raises RuntimeError if it failed, which is no hang and no good end."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    if status:
        raise RuntimeError(f"a rank ended with {os.waitstatus_to_exitcode(status)}")
    return not ended


def count(way: str, seconds: float, at_once: int, folder: Path) -> tuple[int, int]:
    """Jobs that ended, and jobs that hung."""
    until, made, ended, hung = time.monotonic() + seconds, 0, 0, 0
    running: dict[int, tuple[float, list[int]]] = {}
    while running or time.monotonic() < until:
        while len(running) < at_once and time.monotonic() < until:
            made += 1
            meeting = folder / f"{way}-{made}"
            running[made] = (time.monotonic(), [rank_of(way, rank, meeting) for rank in range(2)])
        time.sleep(0.05)
        for number, (begun, ranks) in list(running.items()):
            ranks[:] = [pid for pid in ranks if still_runs(pid)]
            late = time.monotonic() > begun + HANGS_S
            if ranks and not late:
                continue
            for pid in ranks:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            ended, hung = ended + (not ranks), hung + bool(ranks)
            del running[number]
    return ended, hung


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="for each way (default: 120)")
    parser.add_argument("--at-once", type=int, default=3, help="jobs of two processes each (default: 3)")
    asked = parser.parse_args()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for way in WAYS:
            ended, hung = count(way, asked.seconds, asked.at_once, Path(folder))
            print(f"{way:12} {hung} of {ended + hung} hung", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
