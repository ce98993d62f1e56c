"""Make a job of many ranks from a recording of few ranks: all ranks differ, and one keeps the recording's fault.

    python benchmarks/many_ranks.py OUT --ranks 1024 [--from tests/traces/slow_loader_rank2] [--late 17] [--digests]

Each rank repeats a recorded rank with its own clock offset and with times that differ by up to 20 µs. The events of a
rank keep their order, and a collective ends at the same time on all ranks. The rank that `--late` names repeats the
recorded rank that has the fault; all other ranks repeat ranks without it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gpudiag.model.event import ProcessGroup, Trace
from gpudiag.model.run_directory import DIGEST_ENDING
from gpudiag.trace import read_traces
from gpudiag.trace.readers.digest.encode import encode

ROOT = Path(__file__).parents[1]
_TIMES = re.compile(r'"ts":([0-9.]+)(?:,"dur":([0-9.]+))?')
_COLLECTIVE = re.compile(r'"name":"(?:ncclDevKernel|gloo:)[^\n]*"ts":([0-9.]+),"dur":([0-9.]+)')
#: Interval in µs of the times with a random move (knots), and the largest move in µs; events between are interpolated.
_KNOT_US = 500.0
_MOST_US = 20.0
#: Largest clock offset in µs: clocks of hosts that are synchronised over a network (NTP) differ by milliseconds.
_MOST_OFFSET_US = 5_000.0


def main() -> int:
    """Write the ranks' traces."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("--ranks", type=int, default=1024)
    options.add_argument("--from", dest="source", type=Path, default=ROOT / "tests" / "traces" / "slow_loader_rank2")
    options.add_argument("--fault", type=int, default=2, help="the recording's rank with the fault")
    options.add_argument("--late", type=int, default=17, help="the rank that repeats it")
    options.add_argument("--digests", action="store_true", help="write digests, which takes less time than traces")
    given = options.parse_args()
    make_ranks(given.source, given.out, given.ranks, fault=given.fault, late=given.late, digests=given.digests)
    return 0


def make_ranks(source: Path, out: Path, ranks: int, *, fault: int, late: int, digests: bool = False) -> None:
    """Write the traces or digests of a job of `ranks` ranks into `out`, in parallel processes.

    Rank `late` repeats the recorded rank `fault`, and the other ranks repeat the other recorded ranks in turn.
    """
    out.mkdir(parents=True, exist_ok=True)
    files = sorted(source.glob("*.json.gz"))
    others = [index for index in range(len(files)) if index != fault] or [fault]
    recorded = [fault if rank == late else others[rank % len(others)] for rank in range(ranks)]
    with ProcessPoolExecutor() as pool:
        write = partial(_write_digest if digests else _write_rank, out, ranks)
        made = pool.map(write, range(ranks), [files[index] for index in recorded], chunksize=4)
        for _ in made:  # raise the processes' errors
            pass


def _write_rank(out: Path, ranks: int, rank: int, source: Path) -> None:
    """Write a rank's trace: the text of the recorded trace `source` with another rank, job size and times."""
    text = gzip.decompress(source.read_bytes()).decode()
    head, rest = text.split('"traceEvents"', 1)
    document = json.loads(head.rstrip().rstrip(",") + "}")
    document["distributedInfo"] |= {"rank": rank, "world_size": ranks}
    for group in document["distributedInfo"]["pg_config"]:
        group |= {"pg_size": ranks, "ranks": list(range(ranks))}
    # PyTorch also shortens long lists of ranks.
    body = rest.replace('"Process Group Ranks":"[0, 1, 2, 3]"', '"Process Group Ranks":"[0, 1, ..., N]"')
    body = re.sub(r'"Group size":\d+', f'"Group size":{ranks}', body)
    head = json.dumps(document)[:-1]  # with spaces, without which HTA takes all files for rank 0
    path = out / f"rank{rank}.pt.trace.json.gz"
    path.write_bytes(gzip.compress(f'{head},"traceEvents"{_moved(body, rank)}'.encode(), 1))


@cache
def _recorded(source: Path) -> Trace:
    (trace,) = read_traces([source])
    return trace


def _write_digest(out: Path, ranks: int, rank: int, source: Path) -> None:
    """Write a rank's digest, made from the trace `source` with the changes that `_write_rank` makes."""
    trace = _recorded(source)
    events = trace.events
    rows = [call.row for call in trace.collectives]
    chance = random.Random(rank)  # noqa: S311  # the same job again, not a secret
    knots, moves = _moves(events.end_ns[rows] / 1000, events.end_ns.max() / 1000, chance)
    start, end = (
        times + np.rint(1000 * np.interp(times / 1000, knots, moves)).astype(np.int64)
        for times in (events.start_ns, events.end_ns)
    )
    everyone = tuple(range(ranks))
    made = replace(
        trace,
        rank=rank,
        world_size=ranks,
        origin_ns=trace.origin_ns + round(1000 * chance.uniform(0, _MOST_OFFSET_US)),
        events=replace(events, start_ns=start, end_ns=np.maximum(end, start)),
        collectives=tuple(replace(call, group_ranks=everyone) for call in trace.collectives),
        groups={name: ProcessGroup(everyone, group.description) for name, group in trace.groups.items()},
    )
    (out / f"rank{rank}{DIGEST_ENDING}").write_bytes(encode(made))


def _moved(body: str, rank: int) -> str:
    """Return a trace's text with moved event times: a clock offset, and up to 20 µs that vary over time."""
    chance = random.Random(rank)  # noqa: S311  # the same job again, not a secret
    found = [match.groups() for match in _TIMES.finditer(body)]
    start = np.array([float(begun) for begun, _ in found])
    end = start + np.array([float(lasted or 0) for _, lasted in found])
    first = start.min()
    ends = np.array([float(begun) + float(lasted) - first for begun, lasted in _COLLECTIVE.findall(body)])
    knots, moves = _moves(ends, end.max() - first, chance)
    offset = chance.uniform(0, _MOST_OFFSET_US)
    moved_start, moved_end = (times + np.interp(times - first, knots, moves) for times in (start, end))
    lasted = np.maximum(moved_end - moved_start, 0.0)
    rows = iter(zip((moved_start + offset).tolist(), lasted.tolist(), strict=True))

    def replaced(match: re.Match[str]) -> str:
        begun, duration = next(rows)
        return f'"ts":{begun:.3f}' + ("" if match.group(2) is None else f',"dur":{duration:.3f}')

    return _TIMES.sub(replaced, body)


def _moves(ends: NDArray[np.float64], last: float, chance: random.Random) -> tuple[NDArray[np.float64], ...]:
    """Return (times in µs, move in µs of an event at each time). Events between are moved by interpolation.

    Args:
        ends: ends of collectives in µs; they do not move.
        last: end of the last event in µs.
    """
    knots = np.arange(0, last + 2 * _KNOT_US, _KNOT_US)  # the last knot is after the last event
    moves = np.array([chance.uniform(-_MOST_US, _MOST_US) for _ in knots])
    if not len(ends):
        return knots, moves
    nearest = np.abs(knots[:, None] - ends[None, :]).min(axis=1)
    # Near the end of a collective, moves are at most a third of the distance to it, so that events keep their order.
    moves = np.clip(moves, -nearest / 3, nearest / 3)
    at, index = np.unique(np.concatenate([knots, ends]), return_index=True)
    return at, np.concatenate([moves, np.zeros(len(ends))])[index]


if __name__ == "__main__":
    sys.exit(main())
