"""The processes of a benchmark: one set of process groups that every strategy of it uses in its turn."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed as dist


class World:
    """This process among the others.

    Strategies exchange over the default process group, of which a program has one. In a benchmark each has the group
    that it would have made for itself as the default one during its turn: `acting`. What the benchmark itself has to
    tell goes over a gloo group of its own, that no strategy uses, and no GPU waits for.

    Args:
        device: `cuda` or `cpu`.
    """

    def __init__(self, device: str) -> None:
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.on_gpu = device == "cuda"
        self.device = torch.device("cuda", local_rank) if self.on_gpu else torch.device("cpu")
        if self.on_gpu:
            torch.cuda.set_device(self.device)
            torch.backends.cudnn.benchmark = True
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._control: Any = dist.group.WORLD
        self._groups: dict[str, Any] = {}

    def group(self, backend: str | None) -> Any:
        """The group of a backend (None for the device's usual one), made at its first use, by all ranks at once."""
        name = backend or ("nccl" if self.on_gpu else "gloo")
        if name not in self._groups:
            self._groups[name] = dist.new_group(backend=name)
        return self._groups[name]

    @contextmanager
    def acting(self, backend: str | None) -> Iterator[None]:
        """While inside, the default process group is the one of this backend."""
        group = self.group(backend)
        c10d: Any = dist.distributed_c10d
        c10d._update_default_pg(group)  # noqa: SLF001  # strategies take the default group, which has no public setter
        try:
            yield
        finally:
            c10d._update_default_pg(self._control)  # noqa: SLF001

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank, on each of them; waits for all."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._control)
        return values

    def first(self, value: Any) -> Any:
        """Rank 0's value, on each rank."""
        return self.gather(value)[0]

    def settle(self) -> None:
        """Wait until this rank's device has done what it was told."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def close(self) -> None:
        """Leave the other processes."""
        dist.destroy_process_group()
