"""Find a process's position in a TensorFlow job, and the key-value store that the job's processes share."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpudiag.training.session.agreement import STORE_VARIABLE, DirectoryStore
from gpudiag.training.session.position import ClusterPosition, current_position

#: Timeout in ms for looking up a key that may not be set.
_LOOKUP_MS = 1


def position_in_cluster(devices: int) -> ClusterPosition:
    """Return the position from the launcher's variables or `TF_CONFIG`. Without both, the job has one process.

    `devices` is the number of devices of this process.
    """
    if os.environ.get("RANK", "").isdecimal():
        return replace(current_position(), devices=devices)
    rank, addresses = _read_config(os.environ.get("TF_CONFIG", ""))
    hosts = [address.rpartition(":")[0] for address in addresses]
    return ClusterPosition(
        rank=rank,
        local_rank=hosts[:rank].count(hosts[rank]),  # number of earlier ranks on the same host
        world_size=len(addresses),
        nodes=len(set(hosts)),
        host=socket.gethostname(),
        pid=os.getpid(),
        devices=devices,
    )


def _read_config(text: str) -> tuple[int, list[str]]:
    """Return this worker's number and all workers' addresses from `TF_CONFIG`; without workers, return 0 and [""].

    The chief, if there is one, counts as worker 0.
    """
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
        from tensorflow.python.eager import context  # there is no public way to get the context

        self._context = context.context()
        self._prefix = f"gpudiag/{session}/"

    def set(self, key: str, value: str) -> None:
        """Set a key. If the key is already set, keep its value."""
        import tensorflow as tf

        with contextlib.suppress(tf.errors.AlreadyExistsError):  # rank 0 posted a decision before it left
            self._context.set_config_key_value(self._prefix + key, value)

    def get(self, key: str) -> str:
        """Return the value of a key that has been set."""
        return str(self._context.get_config_key_value(self._prefix + key))

    def check(self, keys: list[str]) -> bool:
        """Return whether all of the keys are set."""
        import tensorflow as tf

        try:
            for key in keys:
                self._context.get_config_key_value(self._prefix + key, timeout_in_ms=_LOOKUP_MS)
        except (tf.errors.DeadlineExceededError, tf.errors.NotFoundError):
            return False
        return True


def cluster_store(position: ClusterPosition, session: int) -> Any:
    """Return the key-value store that the processes of the job share; None for one process.

    If gpudiag started the job, the store is a directory of the launcher, otherwise TensorFlow's coordination service.
    `session` is the session's number, which is the same in each process.

    Raises:
        RuntimeError: there are several processes, but no coordination service.
    """
    if position.world_size == 1:
        return None
    directory = os.environ.get(STORE_VARIABLE)
    if directory:
        return DirectoryStore(Path(directory) / str(session))
    store = CoordinationStore(session)
    try:
        store.check(["ready"])  # any key shows whether there is a service
    except Exception as error:
        raise RuntimeError(
            f"a job of {position.world_size} processes needs MultiWorkerMirroredStrategy before gpudiag.profile"
        ) from error
    return store
