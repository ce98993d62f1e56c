"""The key-value store through which the processes of a PyTorch job agree: the launcher's private directory, their
process group's, or torchrun's.
"""

from __future__ import annotations

import itertools
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from gpudiag.training.frameworks.directory_store import STORE_VARIABLE, DirectoryStore
from gpudiag.training.session.place import Place

#: One number per session of this process's job; ranks open their sessions in the same order.
_sessions = itertools.count()


def new_job() -> None:
    """This process is about to join another job, with a store of its own: its sessions are counted anew.

    Processes that have taken part in different jobs before would otherwise look for each other under different names.
    """
    global _sessions  # noqa: PLW0603  # a process is in one job at a time
    _sessions = itertools.count()


def job_store(place: Place) -> Any:
    """The key-value store that the job's processes share, under a prefix of this session's own; None for one process.

    Raises:
        RuntimeError: several processes, but neither a default process group nor torchrun's store.
    """
    session = next(_sessions)
    if place.world_size == 1:
        return None
    if directory := os.environ.get(STORE_VARIABLE):
        return DirectoryStore(Path(directory) / f"session-{session}")
    from torch import distributed

    dist: Any = distributed  # whose stores are not in its `__all__`
    if dist.is_initialized():
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001  # there is no public way to the store
    elif os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            place.world_size,
            is_master=False,
            timeout=timedelta(seconds=60),
        )
    else:
        raise RuntimeError(
            f"a job of {place.world_size} processes needs torch.distributed.init_process_group before gpudiag.profile"
        )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"gpudiag/{attempt}/{session}", store)
