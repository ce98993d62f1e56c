"""Measure all-reduce between processes with gloo, of host tensors and of GPU tensors staged through host memory.

The program starts one process per rank (this file with --rank), which imports PyTorch. Sizes grow from 1 KiB to 512 MiB
until `--seconds` are over; omitted sizes are reported. The program prints one JSON object, gpudiag/probe-allreduce/1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _protocol import Probe
from _stopwatch import coefficient_of_variation

if TYPE_CHECKING:
    import torch

#: Bytes of the messages: a few small messages, whose time hardly depends on the size, then powers of two.
_SIZES = [1 << 10, 1 << 13, 1 << 16, 1 << 18, *(1 << power for power in range(20, 30))]
_QUICK = [1 << 10, 1 << 16, 1 << 20, 1 << 24]
#: Number of distinct values. Values are small integers, so that weighted sums over hundreds of ranks are exact in fp32.
_VALUES = 64
#: Smallest number of values of a buffer: 4 MiB, so that small messages share one buffer.
_LEAST_COUNT = 1 << 20


def make_parser(probe: Probe) -> argparse.ArgumentParser:
    """Add the options of the program and of its ranks to the probe's parser, and return the parser."""
    parser = probe.parser
    parser.add_argument("--ranks", type=int, default=2, help="processes")
    parser.add_argument("--strategies", default="gloo", help="comma-separated, of gloo, host-staged")
    parser.add_argument("--largest-mib", type=int, default=512, help="largest message in MiB")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rendezvous", help=argparse.SUPPRESS)
    return parser


class Rank:
    """One process. Buffers grow with the message sizes, because few machines reach the largest size in time.

    Attributes:
        seed: common seed of the values; set by `connect`.
        staged: the prepared strategy copies GPU tensors through host memory.
        base: values from which `wrong` makes the input, the same on every rank.
        host, on_gpu: buffers that are reduced; `on_gpu` is None unless `staged`.
    """

    def __init__(self, rank: int, ranks: int) -> None:
        import torch  # noqa: PLC0415 # only ranks import it
        from torch import distributed  # noqa: PLC0415

        self.torch, self.distributed = torch, distributed
        self.rank, self.ranks = rank, ranks
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
        self.seed = 0
        self.staged = False
        self.base = self.host = torch.empty(0)
        self.on_gpu: torch.Tensor | None = None

    def connect(self, rendezvous: str) -> None:
        """Join the group through the file `rendezvous`, and agree on a seed."""
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self.distributed.init_process_group(
            "gloo",
            init_method=f"file://{rendezvous}",
            rank=self.rank,
            world_size=self.ranks,
            timeout=timedelta(seconds=120),
        )
        self.seed = int(self.agree(float(time.time_ns() % (1 << 30))))

    def prepare(self, strategy: str) -> str | None:
        """Prepare a strategy on every rank; return a reason if at least one rank cannot use it.

        A GPU's context is created here, because creating it during loading would disturb other measurements.
        """
        self.staged = strategy == "host-staged"
        self.base = self.host = self.torch.empty(0)  # so that `grow` allocates the buffers of this strategy
        reason = None
        if self.staged:
            try:
                self.torch.zeros(1, device=self._device())
            except RuntimeError as error:
                reason = f"{error}".splitlines()[0]
        failed = self.torch.tensor([float(reason is not None)])
        self.distributed.all_reduce(failed)
        return (reason or "another rank cannot use its GPU") if failed[0] else None

    def grow(self, count: int) -> None:
        """Allocate buffers for `count` values, and make the base values, which are the same on every rank."""
        if count <= self.base.numel():
            return
        count = max(count, _LEAST_COUNT)
        # Values are computed from their position and the common seed, so ranks need not send them.
        mixed = (self.torch.arange(count, dtype=self.torch.int32) + self.seed) * 0x1E3779B1
        self.base = ((mixed ^ (mixed >> 15)) & (_VALUES - 1)).float()
        self.host = self.torch.empty(count, dtype=self.torch.float32, pin_memory=self.staged)
        self.on_gpu = self.torch.empty(count, device=self._device()) if self.staged else None

    def _device(self) -> str:
        count = self.torch.cuda.device_count()
        if not count:
            raise RuntimeError("PyTorch sees no GPU")
        return f"cuda:{self.rank % count}"

    def run(self, strategy: str, count: int) -> None:
        """All-reduce the first `count` values, as a training step with this strategy does."""
        host = self.host[:count]
        if strategy == "gloo":
            self.distributed.all_reduce(host)
            return
        assert self.on_gpu is not None  # noqa: S101  # strategies were checked against the hardware before
        tensor = self.on_gpu[:count]
        host.copy_(tensor, non_blocking=True)
        self.torch.cuda.synchronize(tensor.device)
        self.distributed.all_reduce(host)
        tensor.copy_(host, non_blocking=True)
        self.torch.cuda.synchronize(tensor.device)

    def wrong(self, strategy: str, count: int) -> int:
        """Reduce new values once, and count the wrong results on all ranks.

        The new values of rank r are (base values + a constant) x (r + 1) + r, so their sum is known.
        """
        weight = self.rank + 1
        fresh = float(count % 7)
        tensor = self.host if strategy == "gloo" else self.on_gpu
        assert tensor is not None  # noqa: S101
        tensor[:count].copy_((self.base[:count] + fresh) * weight + self.rank)
        self.run(strategy, count)
        total = self.ranks * (self.ranks + 1) // 2
        expected = (self.base[:count] + fresh) * total + self.ranks * (self.ranks - 1) // 2
        wrong = self.torch.tensor([int((tensor[:count].cpu() != expected).sum())])
        self.distributed.all_reduce(wrong)
        return int(wrong[0])

    def time_s(self, strategy: str, count: int, iterations: int) -> float:
        """Return the mean time of an all-reduce on this rank, in seconds."""
        self.distributed.barrier()
        began = time.perf_counter()
        for _ in range(iterations):
            self.run(strategy, count)
        return (time.perf_counter() - began) / iterations

    def agree(self, value: float) -> float:
        """Return rank 0's value on every rank."""
        tensor = self.torch.tensor([value], dtype=self.torch.float64)
        self.distributed.broadcast(tensor, 0)
        return float(tensor[0])


def measure(probe: Probe, rank: Rank, strategy: str, sizes: list[int], seconds: float) -> list[dict[str, Any]]:
    """Measure one strategy for `seconds`; return a record of each measured size. `sizes` are bytes in rising order."""
    collectives: list[dict[str, Any]] = []
    began = time.perf_counter()
    last_s = 0.0
    for done, size in enumerate(sizes):
        count = size // 4
        # Verifying takes about two all-reduces, and measuring at least four. The time grows in proportion to the size.
        growth = size / sizes[done - 1] if done else 1
        if rank.agree(float(time.perf_counter() - began + 6 * last_s * growth > seconds and done > 0)):
            probe.skip(
                f"{strategy} all-reduce from {size // 1024} KiB on", f"it would take longer than {seconds:.1f} s"
            )
            break
        if rank.rank == 0:
            probe.progress(f"{strategy} all-reduce, {size // 1024} KiB", done, len(sizes))
        rank.grow(count)
        wrong = rank.wrong(strategy, count)
        # Time sums of zeros: each sum overwrites its input, so other values would grow to infinity.
        tensor = rank.host if strategy == "gloo" else rank.on_gpu
        assert tensor is not None  # noqa: S101
        tensor[:count].zero_()
        once = rank.agree(rank.time_s(strategy, count, 1))
        # Each of the three repeats takes a quarter of the size's share of the time; the rest is for verifying.
        iterations = max(1, min(20, int(seconds / len(sizes) / 4 / max(once, 1e-6))))
        times = [rank.agree(rank.time_s(strategy, count, iterations)) for _ in range(3)]
        last_s = statistics.median(times)
        collectives.append(
            {
                "operation": "all_reduce",
                "strategy": strategy,
                "ranks": rank.ranks,
                "bytes": size,
                "time_us": last_s * 1e6,
                "cv": coefficient_of_variation(times),
                "iterations": iterations,
                "repeats": len(times),
                "wrong_values": wrong,
            }
        )
    return collectives


def rank_main(probe: Probe, options: argparse.Namespace) -> None:
    """Measure as one rank. Only rank 0 writes the result."""
    largest = (16 if options.quick else options.largest_mib) << 20
    strategies = options.strategies.split(",")
    with probe.phase("importing PyTorch"):
        rank = Rank(options.rank, options.ranks)
    rank.connect(options.rendezvous)
    if options.rank == 0:
        probe.versions["torch"] = rank.torch.__version__
        probe.ready()
    rank.distributed.barrier()  # the other ranks wait here until rank 0 gets the command to measure
    sizes = [size for size in (_QUICK if options.quick else _SIZES) if size <= largest]
    collectives: list[dict[str, Any]] = []
    for strategy in strategies:
        with probe.phase("contexts"):
            reason = rank.prepare(strategy)
        if reason is not None:
            probe.errors.append({"what": f"{strategy} all-reduce", "why": reason})
            continue
        collectives += measure(probe, rank, strategy, sizes, options.seconds / len(strategies))
    if options.rank == 0:
        probe.finish(linger=False, collectives=collectives)
    # Rank 0 exits without closing the group, so the other ranks do not close it either.
    os._exit(0)


def main() -> None:
    """Start the ranks, and end all of them if one fails."""
    probe = Probe("gpudiag/probe-allreduce/1", __doc__.splitlines()[0])
    options = make_parser(probe).parse_args()
    probe.given = options  # without `Probe.options`, which would also note the time of imports
    if options.rank is not None:
        rank_main(probe, options)  # ends the process
    if importlib.util.find_spec("torch") is None:
        probe.unavailable("PyTorch is not installed, and gloo comes with it (pip install torch)")
    with tempfile.TemporaryDirectory(prefix="gpudiag-") as directory:
        rendezvous = str(Path(directory) / "rendezvous")
        result = run_ranks(options.ranks, [*sys.argv[1:], "--rendezvous", rendezvous])
    probe.versions.update(result.pop("versions", {}))
    probe.errors += result.pop("errors", [])
    probe.skipped += result.pop("skipped", [])
    probe.phases = result.pop("phases_s", {})
    probe.finish(**result)


def run_ranks(ranks: int, arguments: list[str]) -> dict[str, Any]:
    """Run the ranks, and return rank 0's result; if there is none, return only `errors` with the reason."""
    started: list[subprocess.Popen[bytes]] = []
    output: list[bytes] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        for rank in range(ranks):
            command = [sys.executable, __file__, *arguments, "--rank", str(rank)]
            # Rank 0 reads the command to measure. The other ranks write to standard error only (2).
            stdin = None if rank == 0 else subprocess.DEVNULL
            started.append(subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE if rank == 0 else 2))
        reader = threading.Thread(target=lambda: output.append(started[0].stdout.readline()), daemon=True)  # type: ignore[union-attr]  # it is a pipe
        reader.start()
        # The result arrives before the ranks end. Do not wait for the ranks, because destroying contexts takes long.
        while reader.is_alive():
            failed = [rank for rank, process in enumerate(started) if process.poll() not in {None, 0}]
            if failed:
                return {"errors": [{"what": "gloo all-reduce", "why": f"rank {failed[0]} ended with an error"}]}
            reader.join(0.02)
        if not output[0].endswith(b"\n"):
            why = f"rank 0 ended with exit code {started[0].wait()}"
            return {"errors": [{"what": "gloo all-reduce", "why": why}]}
        result: dict[str, Any] = json.loads(output[0])
        return {key: value for key, value in result.items() if key != "schema"}
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()


if __name__ == "__main__":
    main()
