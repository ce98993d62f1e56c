"""Train a small model with one problem on a known line, to test source locations and costs in findings.

    python benchmarks/line_faults.py --fault saves [--fixed] [--steps 400] [--ms 30]

The line of each problem ends in a comment `# fault: NAME`. `judge_lines.py` measures the true cost with
`alternating_blocks.py`, which changes `args.fixed` during the run.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--fault", required=True)
parser.add_argument("--fixed", action="store_true", help="train without the problem")
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--ms", type=float, default=30.0, help="how long the problem takes where that can be chosen")
parser.add_argument("--width", type=int, default=0, help="of the model; 0 chooses it for the device")
parser.add_argument("--busy", action="store_true", help="compute in workers even if there are too few processors")
parser.add_argument("--rank", type=int, default=-1, help="only this rank has the problem; -1: all ranks")
args = parser.parse_args()

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if GPU else torch.device("cpu")
WIDTH = args.width or (2048 if GPU else 256)
LOCK = threading.Lock()
WORKERS = {"getitem": 0, "getitem-1": 1, "getitem-4": 4, "collate": 2}
#: True if workers and training processes outnumber the cores. Then busy workers would also slow the training, and a
#: slow loader would cost more than the wait for its batches.
CROWDED = not args.busy and WORLD * (1 + WORKERS.get(args.fault, 0)) > len(os.sched_getaffinity(0))


def faulty() -> bool:
    """Return whether the current rank has the problem now."""
    return not args.fixed and args.rank in {-1, RANK}


def spin(ms: float) -> None:
    """Compute in Python for `ms` milliseconds, or sleep if there are fewer processors than busy processes."""
    end = time.perf_counter() + ms / 1e3
    if CROWDED:
        time.sleep(ms / 1e3)
    while time.perf_counter() < end:
        sum(range(50))


class Samples(Dataset[Tensor]):
    """Random samples, decoded slowly on demand."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Tensor:
        if args.fault.startswith("getitem") and faulty():
            # A batch has 16 samples, and the workers make batches in parallel.
            spin(max(WORKERS[args.fault], 1) * args.ms / 16)  # fault: getitem getitem-1 getitem-4
        return torch.full((WIDTH,), index % 7 / 7.0)


def collate(samples: list[Tensor]) -> Tensor:
    """Make a batch of samples."""
    if args.fault == "collate" and faulty():
        spin(WORKERS["collate"] * args.ms)  # fault: collate
    return torch.stack(samples)


def scores(out: Tensor) -> float:
    """Imitate a metric on the CPU: copy the output to the host, and sort it for about `--ms`, at 4 ms a sort."""
    values = out.detach().float().cpu()
    for _ in range(max(1, int(args.ms / 4))):
        values.flatten().repeat(8).sort()  # fault: metric
    return float(values.mean())


def norms(model: nn.Module) -> float:
    """Return the sum of the parameters' gradient norms; read each norm from the device separately."""
    total = 0.0
    for parameter in model.parameters():
        if parameter.grad is not None:
            total += parameter.grad.norm().item()  # fault: item
    return total


def hold_lock(over: threading.Event) -> None:
    """Hold a lock most of the time, as a logging thread does, until `over` is set."""
    while not over.is_set():
        with LOCK:
            time.sleep(args.ms / 1e3 if faulty() else 0)
        time.sleep(0.0005)


def hook(gradient: Tensor) -> Tensor:
    """Return the gradient unchanged. With the fault `hook`, first compute in Python for `--ms`."""
    if args.fault == "hook" and faulty():
        spin(args.ms)  # fault: hook
    return gradient


def after_step(model: nn.Module, out: Tensor, step: int) -> None:
    """If the fault occurs after an update, run it. A save takes about 5 ms, and a line of the log 10 µs."""
    if args.fault == "saves" and faulty():
        for _ in range(max(1, int(args.ms / 5))):
            torch.save(model.state_dict(), io.BytesIO())  # fault: saves
    if args.fault == "sleeps" and faulty():
        time.sleep(args.ms / 1e3)  # fault: sleeps
    if args.fault == "logs" and faulty():
        for number in range(int(100 * args.ms)):
            logging.getLogger("train").info("step %d, value %d", step, number)  # fault: logs
    if args.fault == "metric" and faulty():
        scores(out)
    if args.fault == "lock":
        with LOCK:  # fault: lock
            pass


def main() -> None:
    """Train the model."""
    if WORLD > 1:
        dist.init_process_group("nccl" if GPU else "gloo")
    logging.basicConfig(stream=io.StringIO(), level=logging.INFO)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    plain = nn.Sequential(*layers).to(DEVICE)
    # The hook is on a weight in the middle of the model.
    next(plain[6].parameters()).register_hook(hook)  # type: ignore[no-untyped-call]  # torch's own
    model: nn.Module = DistributedDataParallel(plain) if WORLD > 1 else plain
    forward: Callable[[Tensor, float], Tensor] = lambda batch, _: model(batch)  # noqa: E731
    if args.fault == "recompiles":
        # Each new factor causes a recompilation.
        scaled = torch.compile(lambda batch, factor: batch * factor, backend="eager", dynamic=False)
        torch._dynamo.config.cache_size_limit = 10_000  # noqa: SLF001

        def forward(batch: Tensor, factor: float) -> Tensor:
            return model(scaled(batch, factor))  # type: ignore[no-any-return]  # fault: recompiles

    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    over = threading.Event()
    if args.fault == "lock":
        threading.Thread(target=hold_lock, args=(over,), daemon=True).start()
    loader = DataLoader(Samples(), batch_size=16, num_workers=WORKERS.get(args.fault, 0), collate_fn=collate)
    for step, batch in enumerate(loader):
        out = forward(batch.to(DEVICE), 1.0 + step * (args.fault == "recompiles" and faulty()))
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        if args.fault == "item" and faulty():
            for _ in range(max(1, int(args.ms / 2))):  # at about 2 ms a call
                norms(model)
        optimizer.step()
        after_step(model, out, step)
        if step + 1 == args.steps:
            break
    over.set()
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
