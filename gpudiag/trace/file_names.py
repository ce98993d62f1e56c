"""Parse the names of trace files: rank, world size, worker, time of writing.

Names in use: `rank0.pt.trace.json.gz`, `rank_3.json.gz`, `rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz`,
`trace_rank_2.json`, torchtitan's `iteration_10/rank0_trace.json`, and tensorboard_trace_handler's
`<host>_<pid>.<unix ns>.pt.trace.json.gz`, which has no rank.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

_RANK = re.compile(r"(?:^|[^a-z])(?:rank|worker)[-_ ]?(\d{1,7})(?!\d)", re.IGNORECASE)
_WORLD_SIZE = re.compile(r"(?:world|world[-_]?size|ws)[-_]?(\d{1,7})(?!\d)", re.IGNORECASE)
_HANDLER = re.compile(r"^(?P<worker>.+?)\.(?P<stamp>\d{10,20})\.pt\.trace\.json(?:\.gz)?$")
_HOST_AND_PROCESS = re.compile(r"^(?P<host>.+)_\d{1,10}$")


class NameFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts in a file name; None, "" or 0 if it does not state them.

    Attributes:
        rank: global rank.
        world_size: ranks in the job.
        host: host name, from tensorboard_trace_handler's default worker name.
        worker: worker name, if the name has a time stamp: a worker writes one file per profiled cycle.
        stamp: the time stamp, in the handler's unit.
    """

    rank: int | None = None
    world_size: int | None = None
    host: str = ""
    worker: str = ""
    stamp: int = 0


def parse_name(path: Path) -> NameFacts:
    """Parse a file's name, and for the rank also its directory's name (`rank_3/trace.json`)."""
    rank = _RANK.search(path.name) or _RANK.fullmatch(path.parent.name)
    world_size = _WORLD_SIZE.search(path.name)
    worker, stamp, host = "", 0, ""
    if handler := _HANDLER.match(path.name):
        worker, stamp = handler["worker"], int(handler["stamp"])
        named = _HOST_AND_PROCESS.match(worker)
        host = named["host"] if named and not _RANK.search(worker) else ""
    return NameFacts(
        rank=int(rank[1]) if rank else None,
        world_size=int(world_size[1]) if world_size and int(world_size[1]) > 0 else None,
        host=host,
        worker=worker,
        stamp=stamp,
    )
