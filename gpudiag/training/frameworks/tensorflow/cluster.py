"""Where a process stands in a TensorFlow job, and how its processes agree with each other."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path
from typing import Any

from gpudiag.training.frameworks.directory_store import STORE_VARIABLE, DirectoryStore
from gpudiag.training.session.place import Place, this_place

#: How long a look at a key that nobody has set may take.
_LOOK_MS = 1


def place_in_cluster(devices: int) -> Place:
    """The place that the launcher gave to this process, else what `TF_CONFIG` says of the workers, else a job of one.

    Args:
        devices: how many devices this process drives.
    """
    if os.environ.get("RANK", "").isdecimal():
        given = this_place()
        rank, local_rank, world, nodes = given.rank, given.local_rank, given.world_size, given.nodes
    else:
        rank, addresses = _from_config(os.environ.get("TF_CONFIG", ""))
        hosts = [address.rpartition(":")[0] for address in addresses]
        world, nodes = len(addresses), len(set(hosts))
        local_rank = hosts[:rank].count(hosts[rank])
    return Place(
        rank=rank,
        local_rank=local_rank,
        world_size=world,
        nodes=nodes,
        host=socket.gethostname(),
        pid=os.getpid(),
        devices=devices,
    )


def _from_config(text: str) -> tuple[int, list[str]]:
    """This worker's number and all workers' addresses; one without address where there is no cluster of workers."""
    try:
        config = json.loads(text) if text else {}
        chief = config.get("cluster", {}).get("chief", [])
        workers = [str(address) for address in (*chief, *config.get("cluster", {}).get("worker", []))]
        task = config.get("task", {})
        number = int(task.get("index", 0)) + (len(chief) if task.get("type") == "worker" else 0)
    except (ValueError, TypeError, AttributeError):
        return 0, [""]
    return (number, workers) if number < len(workers) else (0, [""])


class CoordinationStore:
    """The key-value store of TensorFlow's coordination service, which MultiWorkerMirroredStrategy starts."""

    def __init__(self, session: int) -> None:
        from tensorflow.python.eager import context  # there is no public way to it

        self._context = context.context()
        self._prefix = f"gpudiag/{session}/"

    def set(self, key: str, value: str) -> None:
        """Set a key, which must not have been set before."""
        import tensorflow as tf

        with contextlib.suppress(tf.errors.AlreadyExistsError):  # a verdict that rank 0 left for whoever comes late
            self._context.set_config_key_value(self._prefix + key, value)

    def get(self, key: str) -> str:
        """The value of a key that has been set."""
        return str(self._context.get_config_key_value(self._prefix + key))

    def check(self, keys: list[str]) -> bool:
        """Have all of them been set?"""
        import tensorflow as tf

        try:
            for key in keys:
                self._context.get_config_key_value(self._prefix + key, timeout_in_ms=_LOOK_MS)
        except (tf.errors.DeadlineExceededError, tf.errors.NotFoundError):
            return False
        return True


def cluster_store(place: Place, session: int) -> Any:
    """The store that the processes of the job share; None for one process.

    The launcher's directory where gpudiag started the job, else the coordination service.

    Args:
        place: this process.
        session: number of the session, the same in each process.

    Raises:
        RuntimeError: several processes, and neither.
    """
    if place.world_size == 1:
        return None
    directory = os.environ.get(STORE_VARIABLE)
    if directory:
        return DirectoryStore(Path(directory) / str(session))
    store = CoordinationStore(session)
    try:
        store.check(["ready"])
    except Exception as error:
        raise RuntimeError(
            f"a job of {place.world_size} processes needs MultiWorkerMirroredStrategy before gpudiag.profile"
        ) from error
    return store
