"""Run a rank of the shared-host all-reduce with the scenarios of a test.

python exchange_each.py RANK WORLD MEETING '{"scenarios": ["sums", ...], "engines": ["torch", ...], ...}'
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpudiag import CpuReduceHook
from gpudiag.errors import GpudiagError, HardwareMissingError
from gpudiag.training.strategies.shared_host import all_reduce
from gpudiag.training.strategies.shared_host.all_reduce import SharedHostAllReduce
from tests.training.strategies.processes import tell

SIZES = (1, 31, 32, 1000, 100_001)
WIRES = {None: None, "bf16": torch.bfloat16, "fp16": torch.float16}


def make(plan: dict[str, Any], **options: Any) -> SharedHostAllReduce:
    """Return an all-reduce with the engine and timeout of the plan, the program's JSON argument."""
    return SharedHostAllReduce(
        device=DEVICE,
        engine=plan.get("engine", "auto"),
        chunk_bytes=64 << 10,
        timeout_s=plan.get("timeout_s", 600),
        **options,
    )


def sums(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the largest relative error of sums by type and transport precision, and whether all ranks agree."""
    worst: dict[str, float] = {}
    alike = True
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for name, wire in WIRES.items():
            exchange = make(plan, wire=wire, mean=False)
            for size in SIZES:
                parts = [
                    torch.randn(size, generator=torch.Generator().manual_seed(100 * size + r)) for r in range(WORLD)
                ]
                # The input values are exact in both types, so rounding the input adds no error.
                parts = [part.to(dtype).to(wire or dtype).to(dtype).to(wire or dtype).double() for part in parts]
                result = exchange.all_reduce(parts[RANK].clone().to(device=DEVICE, dtype=dtype)).cpu()
                exact = torch.stack(parts).sum(0)
                # relative to at least 0.5, because sums near 0 have large relative errors
                off = ((result.double() - exact).abs() / exact.abs().clamp(min=0.5)).max()
                key = f"{str(dtype).removeprefix('torch.')} {name}"
                worst[key] = max(worst.get(key, 0.0), float(off))
                everyone: list[Any] = [None] * WORLD
                dist.all_gather_object(everyone, result.double().sum().item())
                alike &= len(set(everyone)) == 1
            exchange.close()
    return {"worst": worst, "alike": alike}


def special(plan: dict[str, Any]) -> dict[str, Any]:
    """Reduce NaN and infinities in each transport precision."""
    answers = {}
    for name, wire in WIRES.items():
        exchange = make(plan, wire=wire)
        values = torch.ones(100_000, device=DEVICE)
        if RANK == 0:
            values[7], values[8], values[9], values[99_999] = float("nan"), float("inf"), float("inf"), float("-inf")
        if RANK == 1:
            values[9] = float("-inf")
        result = exchange.all_reduce(values).cpu()
        odd = [index for index in range(len(result)) if result[index] != 1]
        answers[str(name)] = {str(index): str(float(result[index])) for index in odd}
        exchange.close()
    return answers


def many(plan: dict[str, Any]) -> dict[str, Any]:
    """Reduce several tensors concurrently, until slots, lanes and the ring buffer are reused."""
    exchange = make(plan, slots=2, lanes=2)
    right = True
    for turn in range(30):
        tensors = [torch.full((size,), float(RANK + turn), device=DEVICE) for size in (70_000, 3, 200_000)]
        for future in [exchange.start(tensor) for tensor in tensors]:
            result = future.wait()
            right &= bool((result == turn + (WORLD - 1) / 2).all())
    exchange.close()
    exchange.close()  # does nothing
    return {"right": right, "engine": exchange.engine}


def as_hook(plan: dict[str, Any]) -> dict[str, Any]:
    """Register the hook with DistributedDataParallel, as a user does, and return the gradients."""
    torch.manual_seed(0)
    model = nn.Linear(300, 200).to(DEVICE)
    wrapped = DistributedDataParallel(model, device_ids=[DEVICE] if ON_GPU else None)
    hook = CpuReduceHook(DEVICE, wire="bf16", engine=plan.get("engine", "auto"))
    wrapped.register_comm_hook(None, hook)
    for _ in range(3):
        wrapped.zero_grad()
        wrapped(torch.full((4, 300), float(RANK), device=DEVICE)).sum().backward()
    hook.check()
    hook.close()
    assert model.weight.grad is not None
    return {"gradients": sorted(set(model.weight.grad.flatten().tolist()))}


def shapes(plan: dict[str, Any]) -> dict[str, Any]:
    """Reduce unsupported tensors, and a tensor of several dimensions."""
    exchange = make(plan)
    refused = []
    for tensor in (torch.ones(4, dtype=torch.int64), torch.ones(4, dtype=torch.complex64), torch.eye(3).to_sparse()):
        try:
            exchange.start(tensor)
        except GpudiagError as error:
            refused.append(str(error))
    square = exchange.all_reduce(torch.full((30, 40), float(RANK), device=DEVICE))
    exchange.close()
    return {"refused": refused, "shape": list(square.shape), "value": float(square[29, 39])}


def no_room(plan: dict[str, Any]) -> dict[str, Any]:
    """Limit the file size of rank 0, which creates the shared memory, so that the creation fails."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    if RANK == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, limit[1]))
    try:
        make(plan)
    except GpudiagError as error:
        return {"error": type(error).__name__, "message": str(error), "hint": error.hint}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    return {}


def refused_pinning(plan: dict[str, Any]) -> dict[str, Any]:
    """Let pinning fail on rank 1, and return the error."""

    class Refuses:
        def __init__(self, control: Any) -> None:
            raise HardwareMissingError(f"{DEVICE} cannot pin {control.layout.total_bytes / 1e6:.0f} MB", "ulimit -l")

    kept = vars(all_reduce)["CpuMover"]
    if RANK == 1:
        vars(all_reduce)["CpuMover"] = Refuses
    try:
        make(plan)
    except GpudiagError as error:
        return {"message": str(error)}
    finally:
        vars(all_reduce)["CpuMover"] = kept
    return {}


def dies(plan: dict[str, Any]) -> dict[str, Any]:
    """Kill the last rank during an all-reduce, which every other rank must notice."""
    exchange = make(plan)
    exchange.all_reduce(torch.ones(1000, device=DEVICE))
    sys.stdout.write("under way\n")
    sys.stdout.flush()
    if WORLD - 1 == RANK:
        os.kill(os.getpid(), signal.SIGKILL)
    return until_it_fails(exchange, lambda: exchange.all_reduce(torch.ones(100_000, device=DEVICE)))


def leaves(plan: dict[str, Any]) -> dict[str, Any]:
    """Let the last rank train fewer steps than the other ranks."""
    exchange = make(plan)
    for _ in range(3):
        exchange.all_reduce(torch.ones(1000, device=DEVICE))
    if WORLD - 1 == RANK:
        exchange.close()
        dist.barrier()
        return {}
    failure = until_it_fails(exchange, lambda: exchange.all_reduce(torch.ones(1000, device=DEVICE)))
    dist.barrier()
    return failure


def stuck(plan: dict[str, Any]) -> dict[str, Any]:
    """Let the last rank hang."""
    exchange = make({**plan, "timeout_s": plan["stuck_s"]})
    exchange.all_reduce(torch.ones(1000, device=DEVICE))
    answer = {}
    if WORLD - 1 != RANK:
        answer = until_it_fails(exchange, lambda: exchange.all_reduce(torch.ones(1000, device=DEVICE)))
    dist.barrier()
    return answer


def unlike(plan: dict[str, Any]) -> dict[str, Any]:
    """Let the last rank reduce a tensor of another size."""
    exchange = make(plan)
    exchange.all_reduce(torch.ones(1000, device=DEVICE))
    size = 2000 + (WORLD - 1 == RANK)
    failure = until_it_fails(exchange, lambda: exchange.all_reduce(torch.ones(size, device=DEVICE)))
    dist.barrier()
    return failure


def until_it_fails(exchange: SharedHostAllReduce, run: Any) -> dict[str, Any]:
    """Call `run` until it raises an error, for at most 60 s, and close the all-reduce.

    Return the error (None if there was none), the seconds until then, whether the last result had NaN, and the shared
    files (`open`) that are still open or mapped.
    """
    began = time.monotonic()
    message = hint = None
    nan = False
    try:
        while time.monotonic() - began < 60:
            nan = bool(run().isnan().any())
    except GpudiagError as error:
        message, hint = str(error), error.hint
    seconds = time.monotonic() - began
    exchange.close()
    gc.collect()
    files = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink() and link.exists()]
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "gpudiag-exchange" in line]
    return {
        "message": message,
        "hint": hint,
        "seconds": seconds,
        "nan": nan,
        "open": [name for name in files if "gpudiag-exchange" in name] + mapped,
    }


if __name__ == "__main__":
    RANK, WORLD, meeting, asked = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
    ON_GPU = asked.get("device") == "cuda"
    DEVICE = torch.device("cuda", RANK) if ON_GPU else torch.device("cpu")
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=RANK, world_size=WORLD)
    tell(
        {
            engine: {name: globals()[name]({**asked, "engine": engine}) for name in asked["scenarios"]}
            for engine in asked.get("engines", ["auto"])
        }
    )
    # A peer was killed in a scenario, and a normal exit would wait for this peer.
    sys.stdout.flush()
    os._exit(0)
