"""How the processes of a fault job keep together: through the launcher's store, never by a collective."""

from __future__ import annotations

import json
import time
from typing import Any

from gpudiag.errors import WorkerFailedError
from gpudiag.training.frameworks.tensorflow.cluster import cluster_store
from gpudiag.training.session.position import ClusterPosition

#: Longer than any step between two meetings; a peer that has died is the launcher's affair.
_PATIENCE_S = 120.0

#: The store of a fault job has a number that no session of it will have.
_SESSION = 1_000_000


class Together:
    """All processes of the job, each of which says the same things in the same order."""

    def __init__(self, place: ClusterPosition) -> None:
        self._rank, self._size = place.rank, place.world_size
        self._store = cluster_store(place, _SESSION)
        self._meeting = 0

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, by rank, on each of them; waits for all.

        Args:
            value: anything that JSON can hold.

        Raises:
            WorkerFailedError: a process does not come.
        """
        if self._store is None:
            return [value]
        meeting, self._meeting = self._meeting, self._meeting + 1
        keys = [f"{meeting}/{rank}" for rank in range(self._size)]
        self._store.set(keys[self._rank], json.dumps(value))
        until = time.monotonic() + _PATIENCE_S
        pause_s = 0.0005
        while not self._store.check(keys):
            if time.monotonic() > until:
                raise WorkerFailedError(f"rank {self._rank} waited in vain for its peers")
            time.sleep(pause_s)
            pause_s = min(0.01, 1.5 * pause_s)
        return [json.loads(self._store.get(key)) for key in keys]
