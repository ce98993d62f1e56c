"""Measure the bandwidth of host memory within and between NUMA nodes, with buffers much larger than the caches.

For each pair of nodes, threads on node i copy from memory of node i to memory of node j. Copied bytes count once
(STREAM counts them twice, as read and as written). The program prints one JSON object, gpudiag/probe-host-memory/1.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import threading
import time

import _numa
import numpy as np
from _pattern import POISON_BYTE, HostPattern, fresh_seed
from _protocol import Probe
from _stopwatch import rates_while_all_run, repeat_until_settled

MIB = 1 << 20


def allocate(size: int, node: int) -> np.ndarray:
    """Allocate `size` bytes on `node`, in huge pages if the kernel offers them, and touch every page."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # without huge pages, use small pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    words = np.frombuffer(memory, dtype=np.uint64)
    with _numa.memory_on(node):
        words.fill(int.from_bytes(bytes([POISON_BYTE]) * 8, "little"))
    return words


class CopyTeam:
    """`threads` threads on the `cpus` of one node. Each of them copies one slice from `source` to `target` (uint64)."""

    def __init__(self, source: np.ndarray, target: np.ndarray, cpus: set[int], threads: int) -> None:
        # Slices begin at multiples of a page (512 words), so that no two threads write into one page.
        bounds = np.linspace(0, source.size, threads + 1).astype(int) // 512 * 512
        bounds[-1] = source.size
        self.slices = [
            (source[a:b].ctypes.data, target[a:b].ctypes.data, int(b - a) * 8) for a, b in itertools.pairwise(bounds)
        ]
        self.cpus = sorted(cpus)

    def run(self, copies: int) -> list[float]:
        """Let each thread copy `copies` times; return the bytes per second of each thread while all of them run."""
        barrier = threading.Barrier(len(self.slices))
        stamps: list[list[float]] = [[] for _ in self.slices]
        workers = [
            threading.Thread(target=self._work, args=(i, copies, barrier, times)) for i, times in enumerate(stamps)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return rates_while_all_run(stamps, self.slices[0][2])  # all slices have about this size

    def _work(self, i: int, copies: int, barrier: threading.Barrier, stamps: list[float]) -> None:
        """Copy slice `i` repeatedly in this thread, and append the times in s at which 0, 1, 2, … copies had ended."""
        source, target, size = self.slices[i]
        os.sched_setaffinity(0, {self.cpus[i % len(self.cpus)]})
        barrier.wait()
        start = time.perf_counter()
        stamps.append(0.0)
        for _ in range(copies):
            ctypes.memmove(target, source, size)
            stamps.append(time.perf_counter() - start)


def main() -> None:
    """Measure copies within every node, and between every two nodes unless --quick is given."""
    probe = Probe("gpudiag/probe-host-memory/1", __doc__.splitlines()[0])
    probe.parser.add_argument("--mib", type=int, default=512, help="MiB per buffer")
    probe.parser.add_argument("--threads", type=int, default=0, help="threads; every usable core of the node if 0")
    options = probe.options()
    probe.versions["numpy"] = np.__version__
    nodes = _numa.nodes()
    size = options.mib * MIB
    available = _numa.available_bytes()
    if available:  # each node gets two buffers, and the pattern is a further buffer
        size = max(16 * MIB, min(size, available // 8) // MIB * MIB)
    pattern = HostPattern(size)
    buffers: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for node in nodes:
        with probe.attempt(f"host memory of NUMA node {node}"):
            buffers[node] = (allocate(size, node), allocate(size, node))
    probe.ready()
    pairs = [(i, j) for i in buffers for j in buffers if nodes[i] and (i == j or not options.quick)]
    for node, cpus in nodes.items():
        if not cpus:
            probe.skip(f"host memory of NUMA node {node}", "this process may use none of its CPUs")
    bandwidth = []
    for done, (i, j) in enumerate(pairs):
        label = f"host memory, node {i}" if i == j else f"host memory, node {i} to node {j}"
        probe.progress(label, done, len(pairs))
        with probe.attempt(label), _numa.thread_on(i):
            source, target = buffers[i][0], buffers[j][1]
            seed = fresh_seed()
            pattern.fill(source, seed)
            pattern.poison(target)
            # More than 32 threads copy no faster on any socket, and starting more threads takes time.
            team = CopyTeam(source, target, nodes[i], options.threads or min(32, len(nodes[i])))
            first = team.run(1)
            wrong = pattern.count_wrong(target, seed)
            # A pair of nodes gets its share of the time, for at most six runs.
            copies = max(1, min(16, int(options.seconds / len(pairs) / 6 * sum(first) / size)))
            settled = repeat_until_settled(lambda team=team, copies=copies: team.run(copies), least=3, most=6)
            bandwidth.append(
                {
                    "src": f"numa:{i}",
                    "dst": f"numa:{j}",
                    "size_bytes": size,
                    "threads": len(team.slices),
                    "gb_per_s": settled.median / 1e9,
                    "cv": settled.cv,
                    "repeats": settled.repeats,
                    "wrong_words": wrong,
                }
            )
    probe.finish(bandwidth=bandwidth)


if __name__ == "__main__":
    main()
