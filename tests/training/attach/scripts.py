"""Provide typical training scripts without gpudiag: `python scripts.py KIND STEPS`.

Each script prints its losses in full, so that two runs can be compared bit for bit.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def net(width: int = 32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width))


def batches(steps: int, workers: int = 0, **options: Any) -> Iterator[torch.Tensor]:
    """Yield `steps` batches, in epochs of 16 batches."""
    loader = DataLoader(TensorDataset(torch.randn(256, 32)), batch_size=16, num_workers=workers, **options)
    done = 0
    while done < steps:
        for (batch,) in loader:
            done += 1
            yield batch
            if done == steps:
                return


def say(loss: Any) -> None:
    # Write each line at once, because several processes write to one pipe.
    sys.stdout.write(f"{int(os.environ.get('RANK', '0'))} {float(loss).hex()}\n")
    sys.stdout.flush()


def loop(model: nn.Module, optimizer: Any, data: Iterator[torch.Tensor]) -> None:
    for batch in data:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        say(loss.detach())


def plain(steps: int) -> None:
    model = net()
    loop(model, torch.optim.SGD(model.parameters(), lr=0.1), batches(steps))


def train(optimizer: Any, steps: int) -> None:
    """Train a model in DDP, and delete it before its process group. `PytorchStrategy.close` explains the order."""
    model = DistributedDataParallel(net())
    loop(model, optimizer(model.parameters()), batches(steps))


def ddp(steps: int) -> None:
    dist.init_process_group("gloo")
    train(torch.optim.AdamW, steps)
    dist.destroy_process_group()


def numbered(steps: int) -> None:
    """Train ranks that MPI or Slurm has numbered, and that connect through a file."""
    names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
    os.environ["RANK"] = next(os.environ[name] for name in names if name in os.environ)
    meeting = f"file://{os.environ['MEETING']}"
    dist.init_process_group("gloo", init_method=meeting, rank=int(os.environ["RANK"]), world_size=2)
    train(torch.optim.AdamW, steps)
    dist.destroy_process_group()
    sys.exit(3)


def accelerated(steps: int) -> None:
    """Train with Hugging Face's accelerate."""
    from accelerate import Accelerator  # type: ignore[import-not-found]  # installed in a separate environment

    accelerator = Accelerator(cpu=True)
    model = net()
    loader = DataLoader(TensorDataset(torch.randn(32 * steps, 32)), batch_size=16)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
    for (batch,) in loader:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        say(loss.detach())
    accelerator.end_training()


def accumulation(steps: int) -> None:
    """Accumulate the gradients of four batches for each update."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    for number, batch in enumerate(batches(4 * steps)):
        loss = model(batch).square().mean() / 4
        loss.backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
            say(loss.detach())


def gan(steps: int) -> None:
    """Train a critic five times for each update of the generator."""
    generator, critic = net(), net()
    ours, theirs = torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())
    for number, batch in enumerate(batches(5 * steps)):
        theirs.zero_grad()
        loss = critic(batch).mean() - critic(generator(batch).detach()).mean()
        loss.backward()
        theirs.step()
        if number % 5 == 4:
            ours.zero_grad()
            loss = critic(generator(batch)).mean()
            loss.backward()
            ours.step()
        say(loss.detach())


def in_backward(steps: int) -> None:
    """Give each parameter an optimizer that steps within backward."""
    model = net()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}

    def hook(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]  # the key is a parameter
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    for batch in batches(steps):
        loss = model(batch).square().mean()
        loss.backward()
        say(loss.detach())


def grad_scaler(steps: int) -> None:
    """Skip two of the first steps because of overflow."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for number, batch in enumerate(batches(steps)):
        optimizer.zero_grad()
        loss = model(batch).square().mean() * (float("inf") if number in {3, 9} else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        say(loss.detach())


def zero(steps: int) -> None:
    """Update parameters in groups with one optimizer, as ZeRO-3 does."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    everything = list(model.parameters())
    for batch in batches(steps):
        loss = model(batch).square().mean()
        loss.backward()
        for parameter in everything:
            optimizer.param_groups[0]["params"] = [parameter]
            optimizer.step()
        optimizer.param_groups[0]["params"] = everything
        optimizer.zero_grad()
        say(loss.detach())


def lbfgs(steps: int) -> None:
    """Train with L-BFGS, which evaluates a closure several times per call."""
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for batch in batches(steps):

        def closure(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(batch).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        say(optimizer.step(closure).detach())  # type: ignore[no-untyped-call]


def compiled(steps: int) -> None:
    """Compile the whole step, including the optimizer's call."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="eager")
    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(batch).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    for batch in batches(steps):
        say(step(batch))


def wide_net() -> nn.Sequential:
    """Return a model with steps of a millisecond or more, so that traces of some seconds have fewer than a million
    events.
    """
    return nn.Sequential(nn.Linear(32, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 32))


def own_optimizer(steps: int) -> None:
    """Compute for `steps` seconds, without torch.optim."""
    model = wide_net()
    until = time.monotonic() + steps
    count = 0
    losses = []
    while time.monotonic() < until:
        for batch in batches(16):
            loss = model(batch).square().mean()
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(0.01 * parameter.grad)
                    parameter.grad = None
            count += 1
            losses.append(loss.detach())
    for loss in losses[:20]:
        say(loss)


def inference(steps: int) -> None:
    """Evaluate a model for `steps` seconds, without an optimizer."""
    model = wide_net()
    until = time.monotonic() + steps
    with torch.no_grad():
        while time.monotonic() < until:
            for batch in batches(16):
                out = model(batch).square().mean()
    say(out)


def workers(steps: int) -> None:
    """Use two loaders: one with forked workers, and one with spawned workers, which import this module again."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop(model, optimizer, batches(steps, 1, persistent_workers=True, multiprocessing_context="fork"))
    loop(model, optimizer, batches(4, 1, multiprocessing_context="spawn"))


def _spawned(rank: int, steps: int, meeting: str) -> None:
    os.environ["RANK"] = str(rank)
    settle()
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    train(torch.optim.SGD, steps)
    dist.destroy_process_group()


def spawn(steps: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        torch.multiprocessing.spawn(  # type: ignore[attr-defined, no-untyped-call]
            _spawned, (steps, f"{place}/meeting"), nprocs=2
        )


def own_profiler(steps: int) -> None:
    """Create a profiler after BEFORE (a variable) steps, when gpudiag would record; use DDP under a launcher."""
    model: nn.Module = net()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = batches(steps)
    loop(model, optimizer, (next(data) for _ in range(int(os.environ.get("BEFORE", "0")))))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        loop(model, optimizer, (next(data) for _ in range(5)))
    say(sum(event.key == "aten::linear" for event in profiler.key_averages()))
    loop(model, optimizer, data)


def drift(steps: int) -> None:
    """Train ranks that do not communicate; rank 1 is ten times as fast as rank 0.

    With the variable GROUP the ranks have a process group.
    """
    if os.environ.get("GROUP"):
        dist.init_process_group("gloo")
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    begun_s = time.monotonic()  # the first optimizer imports PyTorch's compiler
    for batch in batches(steps):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        time.sleep(0.001 if os.environ["RANK"] == "1" else 0.01)
    sys.stdout.write(f"{os.environ['RANK']} {time.monotonic() - begun_s:.3f}\n")


def ends(steps: int) -> None:
    """End rank 1 after half of the steps by ENDS (`raise`, `exit` or a signal); then other ranks' connections break."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, batch in enumerate(batches(steps)):
        if os.environ["RANK"] == "1" and number == steps // 2:
            _end(os.environ["ENDS"])
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        time.sleep(0.01)


def _end(how: str) -> None:
    if how == "raise":
        raise ValueError("bad luck")
    if how == "exit":
        sys.exit(4)
    os.kill(os.getpid(), getattr(signal, how))


def slow(steps: int) -> None:
    """Take at least 20 ms a step, and print a line at step SAYS_AT (a variable)."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, batch in enumerate(batches(steps)):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        time.sleep(0.02)
        if number == int(os.environ.get("SAYS_AT", "80")):
            sys.stdout.write("here\n")
            sys.stdout.flush()


def checkpoints(steps: int) -> None:
    """Handle SIGUSR1 as jobs under Slurm do, and then end with a different exit code."""
    signal.signal(signal.SIGUSR1, lambda _number, _frame: sys.exit(9))
    slow(steps)


def full_disk(steps: int) -> None:
    """After 20 steps, limit the size of files to LIMIT (a variable) bytes, as if the disk were full."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = batches(steps)
    loop(model, optimizer, (next(data) for _ in range(20)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.environ["LIMIT"]),) * 2)
    loop(model, optimizer, data)
    sys.exit(6)


def few_lbfgs(steps: int) -> None:
    """Take a few optimizer steps with many evaluations of the closure."""
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=20, tolerance_grad=0.0, tolerance_change=0.0)
    for batch in batches(steps):

        def closure(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(batch).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        say(optimizer.step(closure).detach())  # type: ignore[no-untyped-call]


def crash(steps: int) -> None:
    model = net()
    loop(model, torch.optim.SGD(model.parameters(), lr=0.1), batches(steps))
    raise ValueError("not my day")


def moves(steps: int) -> None:
    os.chdir(tempfile.gettempdir())
    plain(steps)


def never(steps: int) -> None:
    model = net()
    for batch in batches(steps):
        say(model(batch).square().mean().detach())
    sys.exit(3)


def settle() -> None:
    torch.manual_seed(7)
    torch.set_num_threads(1)


if __name__ == "__main__":
    for word in sys.argv[2:]:
        settle()
        kind: Callable[[int], None] = globals()[word]
        kind(int(sys.argv[1]))
