"""The strategies by name: what each needs, and where it is. Read by programs that never import a framework."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from gpudiag.errors import UsageError

if TYPE_CHECKING:
    from gpudiag.strategies.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyEntry:
    """One strategy, as the launcher needs to know it.

    Attributes:
        name: as on the command line.
        summary: one line for help and documentation.
        module: the module whose `STRATEGY` is the class.
        needs_gpu: it cannot run on CPU processes.
        one_process: one process drives all devices of a node; otherwise each device has a process of its own.
    """

    name: str
    summary: str
    module: str
    needs_gpu: bool = False
    one_process: bool = False

    def processes(self, devices: int) -> int:
        """How many processes train on `devices` devices of one node."""
        return 1 if self.one_process else devices


_ENTRIES = (
    StrategyEntry(
        name="nccl",
        summary="DistributedDataParallel over NCCL: each gradient bucket is all-reduced between the GPUs.",
        module="gpudiag.strategies.nccl",
        needs_gpu=True,
    ),
    StrategyEntry(
        name="gloo",
        summary="DistributedDataParallel over gloo: each gradient bucket is all-reduced between the hosts' CPUs.",
        module="gpudiag.strategies.gloo",
    ),
    StrategyEntry(
        name="independent",
        summary="No exchange: each process trains its own model. Its step time is the floor for the others.",
        module="gpudiag.strategies.independent",
    ),
)

STRATEGIES = {entry.name: entry for entry in _ENTRIES}


def strategy_entry(name: str) -> StrategyEntry:
    """The entry of this name.

    Raises:
        UsageError: there is none; the hint lists those that there are.
    """
    if name not in STRATEGIES:
        raise UsageError(f"there is no strategy '{name}'", f"There are: {', '.join(STRATEGIES)}.")
    return STRATEGIES[name]


def load_strategy(name: str, device: Any) -> Strategy:
    """Make the strategy for this process, which trains on `device` (a `torch.device`). Imports the framework."""
    module = importlib.import_module(strategy_entry(name).module)
    return cast("Strategy", module.STRATEGY(device))
