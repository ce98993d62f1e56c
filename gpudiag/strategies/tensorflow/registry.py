"""TensorFlow's strategies by name: what each needs, and where it is. Read by programs that never import a framework."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpudiag.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorflowStrategyEntry:
    """One strategy, as the launcher needs to know it.

    Attributes:
        name: as on the command line.
        summary: one line for help and documentation.
        module: the module whose `make(devices)` gives the `tf.distribute.Strategy`.
        needs_gpu: it cannot run on CPU devices.
        process_per_device: each device has a process of its own; otherwise one process drives all.
    """

    name: str
    summary: str
    module: str
    needs_gpu: bool = False
    process_per_device: bool = False

    def processes(self, devices: int) -> int:
        """How many processes train on `devices` devices of one node."""
        return devices if self.process_per_device else 1


_PACKAGE = "gpudiag.strategies.tensorflow"

_ENTRIES = (
    TensorflowStrategyEntry(
        name="nccl",
        summary="MirroredStrategy, one process; all gradients in one NCCL all-reduce.",
        module=f"{_PACKAGE}.nccl",
        needs_gpu=True,
    ),
    TensorflowStrategyEntry(
        name="hierarchical-copy",
        summary="MirroredStrategy, one process; gradients are copied and summed in a tree of devices.",
        module=f"{_PACKAGE}.hierarchical_copy",
    ),
    TensorflowStrategyEntry(
        name="cpu-reduce",
        summary="MirroredStrategy, one process; gradients are summed on the CPU and copied back.",
        module=f"{_PACKAGE}.cpu_reduce",
    ),
    TensorflowStrategyEntry(
        name="one-device",
        summary="MirroredStrategy, one process; gradients are summed on the first device and copied back.",
        module=f"{_PACKAGE}.one_device",
    ),
    TensorflowStrategyEntry(
        name="central-storage",
        summary="CentralStorageStrategy: variables lie on the CPU, every device reads them there.",
        module=f"{_PACKAGE}.central_storage",
    ),
    TensorflowStrategyEntry(
        name="parameter-server",
        summary="ParameterServerStrategy: a server on the CPU holds the variables, workers fetch and update them.",
        module=f"{_PACKAGE}.parameter_server",
    ),
    TensorflowStrategyEntry(
        name="multi-worker",
        summary="MultiWorkerMirroredStrategy, one process per device; NCCL between GPUs, gRPC between CPUs.",
        module=f"{_PACKAGE}.multi_worker",
        process_per_device=True,
    ),
    TensorflowStrategyEntry(
        name="independent",
        summary="No exchange: each device trains its own model, in one process; the floor for the others.",
        module=f"{_PACKAGE}.independent",
    ),
)

TENSORFLOW_STRATEGIES = {entry.name: entry for entry in _ENTRIES}

#: Unless told: on GPUs what TensorFlow itself would take, on CPU devices the exchange that is quickest there.
DEFAULT_ON_GPUS, DEFAULT_ON_CPUS = "nccl", "cpu-reduce"


def tensorflow_strategy_entry(name: str) -> TensorflowStrategyEntry:
    """The entry of this name.

    Raises:
        UsageError: there is none; the hint lists those that there are.
    """
    if name not in TENSORFLOW_STRATEGIES:
        raise UsageError(
            f"there is no strategy '{name}' with --framework tensorflow",
            f"There are: {', '.join(TENSORFLOW_STRATEGIES)}.",
        )
    return TENSORFLOW_STRATEGIES[name]


def make_strategy(name: str, devices: Sequence[str]) -> Any:
    """Make the `tf.distribute.Strategy` for this process's devices (`GPU:0`, `CPU:1`). Imports TensorFlow."""
    return importlib.import_module(tensorflow_strategy_entry(name).module).make(devices)
