"""Compare all-reduce through host memory (`cpu-reduce`) with NCCL's on one machine, alternately in one run.

    python benchmarks/bench_strategies.py [--output FILE.json] [--sizes-mb 1,5,25,100,400] [--sweep] [--pieces]

Every size is measured in rounds, each method once per round, so that drift affects all methods equally. Results are
medians over rounds. Bus bandwidth is defined as in nccl-tests: 2(n-1)/n x bytes / time. `bytes` is the size of the
float32 gradients, also for methods that send half precision, because the figure compares how soon gradients are
available. Every sum must equal NCCL's bit by bit, because the summands are integers whose sums are exact in every
format.

Upper bounds are measured in the same run. They are the combined copy bandwidth of all GPUs to and from pinned host
memory (in one direction, and in both at once), the CPUs' read, add and copy bandwidth (in memory and in cache), and the
CPUs' summation rate without copies. Without GPUs, CPU processes with gloo replace GPUs with NCCL.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gpudiag.training.strategies.shared_host import layout as places
from gpudiag.training.strategies.shared_host.all_reduce import SharedHostAllReduce

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 3
#: Approximate duration of one measurement, in seconds. A measurement repeats its all-reduce without pauses.
AIM_S = 0.06
#: Megabytes of the all-reduce in the sweep over the parameters of cpu-reduce.
SWEEP_MB = 100
#: Parameters of cpu-reduce: bytes of a chunk, chunks in shared memory per rank (`slots`), concurrent copies per
#: direction and device (`lanes`), and summing threads per rank.
SWEEP: list[dict[str, Any]] = [
    {"chunk_bytes": chunk << 20, "slots": slots, "lanes": lanes, "threads": threads}
    for chunk, slots, lanes, threads in (
        (1, 8, 2, 4),
        (2, 8, 2, 4),
        (4, 8, 2, 4),
        (8, 8, 2, 4),
        (4, 4, 2, 4),
        (4, 16, 2, 4),
        (2, 16, 2, 4),
        (4, 8, 1, 4),
        (4, 8, 4, 4),
        (4, 8, 2, 1),
        (4, 8, 2, 2),
        (4, 8, 2, 8),
        (4, 8, 2, 12),
    )
]

#: For --pieces: minimum numbers of chunks, sizes of fp32 gradients in MB, and summing threads per rank.
PIECES, PIECES_MB, PIECES_THREADS = (4, 8, 12, 16, 24, 32), (5, 25, 100), (4, 8)


class Rank:
    """A process of the measurements. Rank 0 collects the results and prints them as JSON.

    `meeting` is the path of a file through which the processes find each other.
    """

    def __init__(self, meeting: str) -> None:
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.on_gpu = torch.cuda.is_available()
        self.device = torch.device("cuda", self.rank) if self.on_gpu else torch.device("cpu")
        if self.on_gpu:
            torch.cuda.set_device(self.device)
        else:
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // self.world))
        backend = "nccl" if self.on_gpu else "gloo"
        dist.init_process_group(
            backend,
            init_method=f"file://{meeting}",
            rank=self.rank,
            world_size=self.world,
            device_id=self.device if self.on_gpu else None,
        )
        self.control = dist.new_group(backend="gloo")  # for barriers and results, without work on the GPUs
        self.peer = "nccl" if self.on_gpu else "gloo"  # name of the method that cpu-reduce is compared with

    def meet(self) -> None:
        """Wait until all ranks have arrived and their GPUs are idle."""
        if self.on_gpu:
            torch.cuda.synchronize()
        dist.barrier(group=self.control)

    def slowest(self, seconds: float) -> float:
        """Return the maximum of `seconds` over the ranks."""
        worst = torch.tensor([seconds], dtype=torch.float64)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=self.control)
        return float(worst)

    def seconds(self, run: Callable[[], Any], repeats: int) -> float:
        """Return the mean time in seconds of `repeats` calls without pauses, on the slowest rank."""
        self.meet()
        began = time.perf_counter()
        for _ in range(repeats):
            run()
        if self.on_gpu:
            torch.cuda.synchronize()
        return self.slowest((time.perf_counter() - began) / repeats)

    def repeats(self, run: Callable[[], Any]) -> int:
        """Return the number of calls (3 to 50) that take about `AIM_S`; the number is equal on every rank."""
        run()
        return max(3, min(50, int(AIM_S / self.seconds(run, 2))))

    def values(self, count: int) -> torch.Tensor:
        """Return small integers that differ between ranks; any sum of them is exact in bfloat16."""
        generator = torch.Generator().manual_seed(self.rank)
        return torch.randint(0, 256 // self.world, (count,), generator=generator).float().to(self.device)

    def busbw(self, count: int, seconds: float) -> float:
        """Return the bus bandwidth in GB/s for `count` float32 values."""
        return 2 * (self.world - 1) / self.world * 4 * count / seconds / 1e9


def all_reduces(at: Rank, sizes_mb: list[float], *, with_ours: bool) -> list[dict[str, Any]]:
    """Return a row for each size and method of all-reduce, with its time, bandwidth and correctness.

    The methods are NCCL (or gloo), and cpu-reduce if `with_ours` is true. A row's `lowest` and `highest` bandwidth are
    those of single rounds, and `verified` is true if the sum is right on all ranks. Methods that
    are not available on this machine are left out.
    """

    def compressed(tensor: torch.Tensor, dtype: torch.dtype) -> None:
        small = tensor.to(dtype)
        dist.all_reduce(small)
        tensor.copy_(small)

    methods: dict[str, Callable[[torch.Tensor], Any]] = {
        at.peer: dist.all_reduce,
        f"{at.peer} bf16": lambda tensor: compressed(tensor, torch.bfloat16),
    }
    ours = []
    if with_ours:
        wires = {"": None, " bf16": torch.bfloat16, " fp16": torch.float16}
        plans = [("native", name, wire) for name, wire in wires.items()]
        plans += [("torch", "", None), ("torch", " bf16", torch.bfloat16)]
        for engine, name, wire in plans:
            try:
                options: dict[str, Any] = {"wire": wire, "mean": False, "engine": engine}
                made = SharedHostAllReduce(group=at.control, device=at.device, **options)
            except ValueError as error:
                if at.rank == 0:
                    print(f"{engine}: {error}", file=sys.stderr)
                continue
            ours.append(made)
            methods[f"cpu-reduce{' (torch ops)' if engine == 'torch' else ''}{name}"] = made.all_reduce
    rows = []
    for megabytes in sizes_mb:
        count = int(megabytes * 1e6) // 4
        source = at.values(count)
        work = source.clone()
        dist.all_reduce(work)
        truth = work.clone()
        times: dict[str, list[float]] = {name: [] for name in methods}
        right = {}
        for name, method in methods.items():
            work.copy_(source)
            method(work)
            right[name] = torch.equal(work, truth)
        # The results of the following sums are not checked, so their values may grow.
        repeats = {name: at.repeats(partial(method, work)) for name, method in methods.items()}
        for _ in range(ROUNDS):
            for name, method in methods.items():
                work.copy_(source)
                times[name].append(at.seconds(partial(method, work), repeats[name]))
        for name, seconds in times.items():
            verified = torch.tensor([float(right[name])])
            dist.all_reduce(verified, op=dist.ReduceOp.MIN, group=at.control)
            rows.append(
                {
                    "method": name,
                    "megabytes": megabytes,
                    "ms": statistics.median(seconds) * 1e3,
                    "busbw_gb_per_s": at.busbw(count, statistics.median(seconds)),
                    "lowest": at.busbw(count, max(seconds)),
                    "highest": at.busbw(count, min(seconds)),
                    "verified": bool(verified),
                }
            )
    for made in ours:
        made.close()
    return rows


def sweep(at: Rank) -> list[dict[str, Any]]:
    """Return the bus bandwidth of cpu-reduce, the better of two, for each set of options in `SWEEP`."""
    count = int(SWEEP_MB * 1e6) // 4
    work = at.values(count)
    rows = []
    for options in SWEEP:
        row: dict[str, Any] = dict(options)
        for name, wire in (("fp32", None), ("bf16", torch.bfloat16)):
            made = SharedHostAllReduce(group=at.control, device=at.device, wire=wire, **options)
            run = partial(made.all_reduce, work)
            repeats = at.repeats(run)
            row[name] = at.busbw(count, min(at.seconds(run, repeats) for _ in range(2)))
            made.close()
        rows.append(row)
    return rows


def pieces(at: Rank) -> list[dict[str, Any]]:
    """Return the rates of cpu-reduce for each number of chunks in `PIECES` and of threads in `PIECES_THREADS`."""
    rows = []
    for threads in PIECES_THREADS:
        for name, wire in (("fp32", None), ("bf16", torch.bfloat16)):
            made = SharedHostAllReduce(group=at.control, device=at.device, wire=wire, threads=threads)
            for megabytes in PIECES_MB:
                count = int(megabytes * 1e6) // 4
                work = at.values(count)
                for number in PIECES:
                    made._pieces = number  # noqa: SLF001 # pinning new memory for each number would take longer
                    run = partial(made.all_reduce, work)
                    repeats = at.repeats(run)
                    seconds = statistics.median(at.seconds(run, repeats) for _ in range(ROUNDS))
                    rows.append(
                        {
                            "wire": name,
                            "threads": threads,
                            "megabytes": megabytes,
                            "pieces": number,
                            "ms": seconds * 1e3,
                            "busbw_gb_per_s": at.busbw(count, seconds),
                        }
                    )
            made.close()
    return rows


def sums_alone(at: Rank) -> list[dict[str, Any]]:
    """Return the rates, in GB/s of float32 gradients, at which all ranks' threads sum without copies.

    Each rank marks all chunks as arrived and fetched in advance, so that its threads never wait for a copy.
    """
    rows = []
    for engine in ("native", "torch"):
        # The engine `torch` chooses its number of threads itself.
        for threads in (1, 2, 4, 8, 12) if engine == "native" else (0,):
            try:
                made = SharedHostAllReduce(
                    group=at.control,
                    device=at.device,
                    engine="native" if engine == "native" else "torch",
                    threads=threads,
                )
            except ValueError:  # the engine is not available on this machine
                continue
            control, chunks = made._control, 200  # noqa: SLF001 # no other thread uses them here
            size = control.layout.chunk_bytes
            for number in range(chunks):
                control.put_piece(number, size // 4, 0, 1)
                control.set(control.lane(places.ARRIVED, number), number + 1)
                control.set(control.lane(places.FETCHED, number), number + 1)
            at.meet()
            began = time.perf_counter()
            made._reducer.submit(chunks)  # noqa: SLF001
            while not control.is_ready(chunks):
                time.sleep(1e-4)
            seconds = at.slowest(time.perf_counter() - began)
            rows.append({"engine": engine, "threads": threads, "gb_per_s": chunks * size / seconds / 1e9})
            made.close()
    return rows


def copies_through_slots(at: Rank) -> list[dict[str, Any]]:
    """Measure the copies of cpu-reduce without its sums: from a GPU to its slots in host memory, and back.

    Return a row for each direction and one for both, in GB/s per GPU and direction; no rows without GPUs.
    """
    if not at.on_gpu:
        return []
    made = SharedHostAllReduce(group=at.control, device=at.device)
    control, mover, layout = made._control, made._mover, made._control.layout  # noqa: SLF001 # no all-reduce is running
    driver, size = mover._driver, layout.chunk_bytes  # type: ignore[union-attr]  # noqa: SLF001 # a CudaMover on a GPU
    gpu = [torch.empty(size, dtype=torch.uint8, device=at.device) for _ in range(2)]
    outgoing, incoming = mover._out, mover._in  # type: ignore[union-attr]  # noqa: SLF001 # a CudaMover on a GPU
    rows = []
    for way, ways in (("to host", (True, False)), ("to GPU", (False, True)), ("both ways", (True, True))):

        def run(ways: tuple[bool, bool] = ways) -> None:
            """Copy 32 chunks to the host if the first of `ways` is set, and 32 to the GPU if the second is set."""
            for number in range(32):
                lane = number % layout.lanes
                own, result = layout.slot(control.rank, number), layout.slot(layout.world, number)
                if ways[0]:
                    stream = outgoing[lane].cuda_stream
                    driver.cuMemcpyDtoHAsync(control.address + own, gpu[0].data_ptr(), size, stream)
                if ways[1]:
                    stream = incoming[lane].cuda_stream
                    driver.cuMemcpyHtoDAsync(gpu[1].data_ptr(), control.address + result, size, stream)

        repeats = at.repeats(run)
        seconds = statistics.median(at.seconds(run, repeats) for _ in range(3))
        rows.append({"buffers": "its slots", "way": way, "gb_per_s_per_gpu_and_way": 32 * size / seconds / 1e9})
    made.close()
    return rows


def copies(at: Rank) -> list[dict[str, Any]]:
    """Measure copies of all GPUs at once to and from pinned host memory, in buffers larger and smaller than the cache.

    The result is in GB/s per GPU and direction; there are no rows without GPUs.
    """
    if not at.on_gpu:
        return []
    rows = []
    for kind, megabytes in (("256 MB, in memory", 256), ("16 MB, in cache", 16)):
        size = megabytes << 20
        host = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        gpu = [torch.empty(size, dtype=torch.uint8, device=at.device) for _ in range(2)]
        make_stream: Any = torch.cuda.Stream
        streams = [make_stream() for _ in range(2)]

        def out(host: Any = host, gpu: Any = gpu, streams: Any = streams) -> None:
            with torch.cuda.stream(streams[0]):
                host[0].copy_(gpu[0], non_blocking=True)

        def back(host: Any = host, gpu: Any = gpu, streams: Any = streams) -> None:
            with torch.cuda.stream(streams[1]):
                gpu[1].copy_(host[1], non_blocking=True)

        ways = {"to host": [out], "to GPU": [back], "both ways": [out, back]}
        for way, runs in ways.items():
            run = lambda runs=runs: [each() for each in runs]  # noqa: E731
            repeats = at.repeats(run)
            seconds = statistics.median(at.seconds(run, repeats) for _ in range(3))
            rows.append({"buffers": kind, "way": way, "gb_per_s_per_gpu_and_way": size / seconds / 1e9})
    return rows


def worker(options: argparse.Namespace) -> None:
    """Run one process of a group, with `options.worker` as `Rank`'s `meeting`; rank 0 prints the results."""
    at = Rank(options.worker)
    sizes = [float(size) for size in options.sizes_mb.split(",")]
    # On GPUs, a group without peer access measures everything, and a group with peer access only NCCL.
    ours = os.environ.get("NCCL_P2P_DISABLE") == "1" or not at.on_gpu
    found: dict[str, Any] = {}
    if ours and options.pieces:
        found["pieces"] = pieces(at)
    else:
        found["all_reduces"] = all_reduces(at, sizes, with_ours=ours)
    if ours and not options.pieces:
        found["copies"] = copies(at) + copies_through_slots(at)
        found["sums_alone"] = sums_alone(at)
        if options.sweep:
            found["sweep"] = sweep(at)
    if at.rank == 0:
        print(f"RESULT {json.dumps(found)}", flush=True)
    at.meet()
    dist.destroy_process_group()


def host_memory() -> list[dict[str, Any]]:
    """Measure the combined bandwidth of all CPUs for reading, copying and adding, in GB/s of bytes read and written.

    The reads with which a cache fetches a line before writing to the line are not counted.
    """
    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    rows = []
    for kind, megabytes in (("1.5 GB, in memory", 512), ("48 MB, in cache", 16)):
        count = (megabytes << 20) // 4
        a, b, c = (torch.ones(count) for _ in range(3))
        # function, and number of arrays that it reads or writes
        runs: dict[str, tuple[Callable[[], Any], int]] = {
            "read": (a.sum, 1),
            "copy": (partial(b.copy_, a), 2),
            "add": (partial(torch.add, a, b, out=c), 3),
        }
        for name, (run, streams) in runs.items():
            run()
            times = []
            for _ in range(9):
                began = time.perf_counter()
                run()
                times.append(time.perf_counter() - began)
            rows.append(
                {"buffers": kind, "what": name, "gb_per_s": streams * count * 4 / statistics.median(times) / 1e9}
            )
    return rows


def start(ranks: int, options: argparse.Namespace, **variables: str) -> dict[str, Any]:
    """Run one group of `ranks` processes with the environment `variables`, and return the results of its rank 0."""
    meeting = tempfile.TemporaryDirectory(prefix="bench-")
    command = [
        sys.executable,
        __file__,
        "--worker",
        f"{meeting.name}/meeting",
        "--sizes-mb",
        options.sizes_mb,
        *(["--sweep"] * options.sweep),
        *(["--pieces"] * options.pieces),
    ]
    processes = []
    for rank in range(ranks):
        values = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), **variables}
        threads = str(max(1, (os.cpu_count() or 1) // ranks))
        values |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads), "GLOO_SOCKET_IFNAME": "lo"}
        output = subprocess.PIPE if rank == 0 else None
        processes.append(subprocess.Popen(command, stdout=output, text=True, env={**os.environ, **values}))
    try:
        text, _ = processes[0].communicate(timeout=options.timeout)
        for process in processes:
            process.wait(timeout=30)
    finally:
        for process in processes:
            process.kill()
        meeting.cleanup()
    results = [line.removeprefix("RESULT ") for line in text.splitlines() if line.startswith("RESULT ")]
    if not results:
        raise SystemExit("the processes ended without a result; see their messages above")
    answer: dict[str, Any] = json.loads(results[0])
    return answer


def show(found: dict[str, Any]) -> None:
    """Print the bandwidth of all-reduces by size, and the measured upper bounds."""
    sizes = sorted({row["megabytes"] for row in found["all_reduces"]})
    methods = dict.fromkeys(row["method"] for row in found["all_reduces"])
    print(f"\nall-reduce bus bandwidth in GB/s, {found['ranks']} ranks, by megabytes of float32 gradients")
    print("| method | " + " | ".join(f"{size:g}" for size in sizes) + " | verified |")
    print("| --- |" + " ---: |" * len(sizes) + " --- |")
    for method in methods:
        by_size = {row["megabytes"]: row for row in found["all_reduces"] if row["method"] == method}
        verified = "yes" if all(row["verified"] for row in by_size.values()) else "NO"
        cells = (f"{by_size[size]['busbw_gb_per_s']:.1f}" if size in by_size else "—" for size in sizes)
        print(f"| {method} | {' | '.join(cells)} | {verified} |")
    print("\nrooflines")
    for row in found["copies"]:
        print(
            f"  copies, all GPUs at once, {row['buffers']}, {row['way']}: "
            f"{row['gb_per_s_per_gpu_and_way']:.1f} GB/s per GPU and way"
        )
    for row in found["host_memory"]:
        print(f"  CPUs, {row['buffers']}, {row['what']}: {row['gb_per_s']:.0f} GB/s")
    both = [row["gb_per_s_per_gpu_and_way"] for row in found["copies"] if row["way"] == "both ways"]
    if both:  # an all-reduce copies the gradients out and back once, at the same time
        n = found["ranks"]
        print(f"  so the copies alone allow a bus bandwidth of {2 * (n - 1) / n * max(both):.1f} GB/s in float32")
    for row in found["sums_alone"]:
        print(
            f"  sums alone, {row['engine']}, {row['threads']} threads per rank: {row['gb_per_s']:.1f} GB/s of gradients"
        )
    for row in found.get("sweep", []):
        shape = f"{row['chunk_bytes'] >> 20} MB x {row['slots']}, lanes {row['lanes']}, threads {row['threads']}"
        print(f"  sweep {shape}: fp32 {row['fp32']:.1f}, bf16 {row['bf16']:.1f} GB/s at {SWEEP_MB} MB")


def show_pieces(rows: list[dict[str, Any]]) -> None:
    """Print the bus bandwidth in GB/s by number of chunks."""
    counts = sorted({row["pieces"] for row in rows})
    print("| wire | threads | MB | " + " | ".join(f"{count} chunks" for count in counts) + " |")
    print("| --- | ---: | ---: |" + " ---: |" * len(counts))
    for key in dict.fromkeys((row["wire"], row["threads"], row["megabytes"]) for row in rows):
        by_count = {r["pieces"]: r for r in rows if (r["wire"], r["threads"], r["megabytes"]) == key}
        cells = (f"{by_count[count]['busbw_gb_per_s']:.1f}" for count in counts)
        print(f"| {key[0]} | {key[1]} | {key[2]} | {' | '.join(cells)} |")


def main() -> int:
    """Run the groups of processes and print the tables; return 1 if any sum was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, help="processes; by default one per GPU, or 2")
    parser.add_argument("--sizes-mb", default="1,5,25,100,400")
    parser.add_argument("--sweep", action="store_true", help="also other chunk sizes, slots, lanes and threads")
    parser.add_argument("--pieces", action="store_true", help="only: into how many chunks a bucket is best cut")
    parser.add_argument("--output", type=Path, help="write all figures there as JSON")
    parser.add_argument("--timeout", type=float, default=240)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return 0
    on_gpu = torch.cuda.is_available()
    ranks = options.ranks or (torch.cuda.device_count() if on_gpu else 2)
    found: dict[str, Any] = {
        "ranks": ranks,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(0) if on_gpu else "cpu",
        "cpus": os.cpu_count(),
        "compilers": {name: shutil.which(name) for name in ("cc", "gcc", "clang", "nvcc")},
    }
    print(json.dumps(found))
    if options.pieces:
        found |= start(ranks, options, **({"NCCL_P2P_DISABLE": "1"} if on_gpu else {}))
        show_pieces(found["pieces"])
        if options.output:
            options.output.write_text(json.dumps(found, indent=1))
        return 0
    found["host_memory"] = host_memory()
    began = time.perf_counter()
    found |= start(ranks, options, **({"NCCL_P2P_DISABLE": "1"} if on_gpu else {}))
    for row in found["all_reduces"]:
        row["method"] += " no P2P" if on_gpu and row["method"].startswith("nccl") else ""
    if on_gpu:
        found["all_reduces"] += start(ranks, options)["all_reduces"]
    found["seconds"] = time.perf_counter() - began
    show(found)
    print(f"{found['seconds']:.0f} s")
    if options.output:
        options.output.write_text(json.dumps(found, indent=1))
    return 0 if all(row["verified"] for row in found["all_reduces"]) else 1


if __name__ == "__main__":
    sys.exit(main())
