"""Make the ranks of a process group on one host find each other through files in the launcher's private directory.

By default ranks connect through a TCP store without authentication, so another user of the host could change its
contents. Other users cannot access the private directory (mode 0700).
"""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gpudiag.training.session.agreement import STORE_VARIABLE

#: Number of groups that this process has joined, by directory and group size. The number is equal in all members of a
#: group, so it names the group's file.
_joined: Counter[tuple[str, int]] = Counter()


def meet_through_files() -> None:
    """Make `init_process_group` with its default `env://` use files in the launcher's directory.

    Do nothing if the launcher has set no directory (several hosts), or if PyTorch has no distributed package.
    """
    if not os.environ.get(STORE_VARIABLE):
        return
    from torch import distributed

    if not distributed.is_available():
        return
    # `torch.distributed.rendezvous` is a function of the same name as the module, so `import_module` is needed.
    # `register_rendezvous_handler` refuses a scheme that already has a handler.
    rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")
    rendezvous._rendezvous_handlers["env"] = _meet  # noqa: SLF001


def _meet(url: str, timeout: timedelta | None = None, **_: Any) -> Iterator[tuple[Any, int, int]]:
    """Yield (store, rank, world size) once, with numbers from the URL's query or torchrun's variables.

    `init_process_group` calls `next` once. A second `next` would ask to join the group again, and raises RuntimeError.
    """
    from torch import distributed

    dist: Any = distributed  # the stores are not in `__all__`
    query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    rank = int(query.get("rank") or os.environ["RANK"])
    world_size = int(query.get("world_size") or os.environ["WORLD_SIZE"])
    directory = os.environ[STORE_VARIABLE]
    number = _joined[directory, world_size]
    _joined[directory, world_size] += 1
    groups = Path(directory) / "groups"
    groups.mkdir(parents=True, exist_ok=True)
    store = dist.FileStore(str(groups / f"{world_size}-{number}"), world_size)
    if timeout is not None:
        store.set_timeout(timeout)
    yield store, rank, world_size
    raise RuntimeError("a process that has left its group cannot join it again")
