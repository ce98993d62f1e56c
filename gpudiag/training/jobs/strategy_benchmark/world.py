"""Manage the process groups of a benchmark's strategies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from gpudiag.model.run import RankRecord
from gpudiag.training.frameworks.pytorch.runtime import device_name
from gpudiag.training.jobs.precision import use_device
from gpudiag.training.session import record
from gpudiag.training.session.position import current_position
from gpudiag.training.strategies.pytorch_strategy import gather_objects


class World:
    """This process, its device (`cuda` or `cpu`) and its process groups.

    Strategies communicate over the default process group. While a strategy runs, `acting` makes the group of the
    strategy's backend the default group. The benchmark itself communicates over gloo.
    """

    def __init__(self, device: str) -> None:
        self.on_gpu = device == "cuda"
        self.device = use_device(device)
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._control: Any = dist.group.WORLD
        self._groups: dict[str, Any] = {}

    def group(self, backend: str | None) -> Any:
        """Return a backend's process group; None is the device's usual backend. All ranks must call this together."""
        name = backend or ("nccl" if self.on_gpu else "gloo")
        if name not in self._groups:
            self._groups[name] = dist.new_group(backend=name)
        return self._groups[name]

    @contextmanager
    def acting(self, backend: str | None) -> Iterator[None]:
        """Make this backend's group the default process group within the context."""
        group = self.group(backend)
        c10d: Any = dist.distributed_c10d
        c10d._update_default_pg(group)  # noqa: SLF001  # the default group has no public setter
        try:
            yield
        finally:
            c10d._update_default_pg(self._control)  # noqa: SLF001

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in the order of ranks."""
        return gather_objects(value, self._control)

    def first(self, value: Any) -> Any:
        """Return rank 0's value on each rank."""
        return self.gather(value)[0]

    def settle(self) -> None:
        """Wait until this rank's device is idle."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def close(self) -> None:
        """Destroy the process groups."""
        dist.destroy_process_group()

    def save_rank(self, run_dir: Path) -> None:
        """Write this rank's record. The launcher checks that the record exists."""
        position = current_position()
        rank_record = RankRecord(
            rank=position.rank,
            local_rank=position.local_rank,
            host=position.host,
            pid=position.pid,
            device=str(self.device),
            device_name=device_name(self.device),
        )
        record.write_rank(run_dir, rank_record)
