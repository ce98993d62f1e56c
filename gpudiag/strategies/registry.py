"""The strategies by name: what each needs, and where it is. Read by programs that never import a framework."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from gpudiag.errors import HardwareMissingError, UsageError

if TYPE_CHECKING:
    from gpudiag.model.job import ExchangeOptions
    from gpudiag.strategies.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyEntry:
    """One strategy, as programs need to know it that do not train.

    Attributes:
        name: as on the command line.
        summary: one line for help and documentation.
        module: the module whose `STRATEGY` is the class.
        needs_gpu: it cannot run on CPU processes.
        one_process: one process drives all devices of a node; otherwise each device has a process of its own.
        one_node: its processes must share memory, so they must be on one node.
        least_devices: with fewer it is the same as `independent` and refused.
        scales_losses: it can train with fp16 under gradient scaling, which must see the exchanged gradients.
        options: names of the `ExchangeOptions` that it takes.
        exchanges: False for the one that does not, and whose processes therefore train different models.
    """

    name: str
    summary: str
    module: str
    needs_gpu: bool = False
    one_process: bool = False
    one_node: bool = False
    least_devices: int = 1
    scales_losses: bool = True
    options: tuple[str, ...] = ("accumulate",)
    exchanges: bool = True

    def processes(self, devices: int) -> int:
        """How many processes train on `devices` devices of one node."""
        return 1 if self.one_process else devices

    def check(self, options: ExchangeOptions, *, devices: int, nodes: int, precision: str | None) -> None:
        """Refuse what this strategy cannot do.

        Args:
            options: what was asked for.
            devices: devices on each node.
            nodes: nodes in the job.
            precision: as on the command line; None when left open.

        Raises:
            UsageError: an option that does not apply, or things that do not go together.
            HardwareMissingError: too few devices.
        """
        for name, value in options.given().items():
            if name not in self.options:
                others = ", ".join(entry.name for entry in _ENTRIES if name in entry.options)
                raise UsageError(f"{_flag(name)} does not apply to {self.name}", f"It applies to {others}.")
            if name == "ps_device" and int(value) >= devices:
                raise UsageError(f"--ps-device {value}: there are devices 0 to {devices - 1}", "Choose one of them.")
        if nodes > 1 and (self.one_node or self.one_process):
            raise UsageError(f"{self.name} works within one node", "Use nccl between nodes, or leave --nnodes out.")
        if devices * nodes < self.least_devices:
            raise HardwareMissingError(
                f"{self.name} needs at least {self.least_devices} devices, and this job has {devices * nodes}",
                "On one device there is nothing to exchange: use independent.",
            )
        if precision == "fp16" and not self.scales_losses:
            raise UsageError(
                f"{self.name} does not go with --precision fp16: its processes cannot agree which steps to leave out",
                "Use --precision bf16, which needs no gradient scaling.",
            )


_DDP = ("bucket_mb", "compress", "accumulate")

_ENTRIES = (
    StrategyEntry(
        name="nccl",
        summary="DistributedDataParallel over NCCL: each gradient bucket is all-reduced between the GPUs.",
        module="gpudiag.strategies.nccl",
        needs_gpu=True,
        options=(*_DDP, "nccl_algo"),
    ),
    StrategyEntry(
        name="gloo",
        summary="DistributedDataParallel over gloo: each gradient bucket is all-reduced between the hosts' CPUs.",
        module="gpudiag.strategies.gloo",
        options=_DDP,
    ),
    StrategyEntry(
        name="cpu-reduce",
        summary="DistributedDataParallel through shared host memory: the CPUs of the node sum each bucket, in chunks.",
        module="gpudiag.strategies.cpu_reduce",
        one_node=True,
        least_devices=2,
        options=_DDP,
    ),
    StrategyEntry(
        name="ps-cpu",
        summary="Parameter server in host memory: gradients go there, the CPUs update, parameters come back.",
        module="gpudiag.strategies.ps_cpu",
        one_node=True,
        least_devices=2,
        scales_losses=False,
    ),
    StrategyEntry(
        name="ps-gpu",
        summary="Parameter server on the GPUs: each variable is summed and updated on one of them, and sent to all.",
        module="gpudiag.strategies.ps_gpu",
        least_devices=2,
        scales_losses=False,
        options=("accumulate", "ps_device", "nccl_algo"),
    ),
    StrategyEntry(
        name="data-parallel",
        summary="torch.nn.DataParallel: one process drives all GPUs and copies the model to them in each step.",
        module="gpudiag.strategies.data_parallel",
        needs_gpu=True,
        one_process=True,
    ),
    StrategyEntry(
        name="fsdp",
        summary="FSDP2: parameters, gradients and optimizer state are spread over the devices and gathered for use.",
        module="gpudiag.strategies.fsdp",
        scales_losses=False,
        options=("compress", "accumulate", "nccl_algo"),
    ),
    StrategyEntry(
        name="independent",
        summary="No exchange: each process trains its own model. Its step time is the floor for the others.",
        module="gpudiag.strategies.independent",
        exchanges=False,
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


def load_strategy(name: str, device: Any, options: ExchangeOptions | None = None, devices: int = 1) -> Strategy:
    """Make the strategy for this process. Imports the framework.

    Args:
        name: as on the command line.
        device: the `torch.device` that this process trains on; the first where it drives several.
        options: how to exchange.
        devices: how many devices this process drives.
    """
    module = importlib.import_module(strategy_entry(name).module)
    return cast("Strategy", module.STRATEGY(device, options, devices))


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"
