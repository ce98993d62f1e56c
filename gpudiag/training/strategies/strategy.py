"""Define the base class of strategies, with descriptions for programs that do not train."""

from __future__ import annotations

from typing import ClassVar, Literal

from gpudiag.errors import HardwareMissingError, UsageError
from gpudiag.model.benchmarks.prediction import Candidate, Compress
from gpudiag.model.facts import Facts
from gpudiag.model.job import INDEPENDENT, CommunicationOptions
from gpudiag.prediction.cost import Cost
from gpudiag.prediction.situation import Situation

#: Default of `list_order` and `preference_rank`, larger than the values of gpudiag's strategies.
_LAST = 1000


class Strategy:
    """Base class of the ways in which the devices of a job communicate gradients or parameters.

    Commands that do not train read these attributes. Therefore a strategy's module imports its framework only in a
    process that trains. `PytorchStrategy` and `TensorflowStrategy` add the methods that train.

    Attributes:
        name: name on the command line.
        summary: one line for help and documentation.
        framework: name of the framework that trains.
        list_order: sort key in lists; small values come first.
        preference_rank: of equally fast strategies, the one with the smallest value is recommended. Well-known
            strategies have small values.
        default_on: kind of device on which the strategy is the default; None if it is never the default.
        needs_gpu: True if the strategy cannot run in CPU processes.
        one_process: True if one process drives all devices of a node; False if each device has its own process.
        one_node: True if the processes share memory, so that they must be on one node.
        least_devices: minimum number of devices. With fewer devices the strategy equals `independent` and is refused.
        locks_memory: True if the processes lock host memory, which the system may forbid.
        scales_losses: True if the strategy can train with fp16, whose loss scaling needs the reduced gradients.
        takes: names of the `CommunicationOptions` that apply to the strategy.
        communicates: False for `independent`, whose processes train different models.
        rounding_pays: True if the strategy is also a candidate with gradients that are rounded for transport.
        through_host: True if gradients are copied through host memory. Then copies count as communication, not input.
        launched_ahead: True if communication is queued on devices, and costs no time while a device waits for its host.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    framework: ClassVar[str]
    list_order: ClassVar[int] = _LAST
    preference_rank: ClassVar[int] = _LAST
    default_on: ClassVar[Literal["cuda", "cpu"] | None] = None
    needs_gpu: ClassVar[bool] = False
    one_process: ClassVar[bool] = False
    one_node: ClassVar[bool] = False
    least_devices: ClassVar[int] = 1
    locks_memory: ClassVar[bool] = False
    scales_losses: ClassVar[bool] = True
    takes: ClassVar[tuple[str, ...]] = ()
    communicates: ClassVar[bool] = True
    rounding_pays: ClassVar[bool] = False
    through_host: ClassVar[bool] = False
    launched_ahead: ClassVar[bool] = False

    @classmethod
    def processes(cls, devices: int) -> int:
        """Return the number of processes that train on `devices` devices of one node."""
        return 1 if cls.one_process else devices

    @classmethod
    def check(cls, options: CommunicationOptions, *, devices: int, nodes: int, precision: str | None) -> None:
        """Refuse a job that this strategy cannot train.

        Args:
            options: options for communication. Only options in `takes` are set.
            devices: number of devices on each node.
            nodes: number of nodes in the job.
            precision: the precision that the user requested; None without a request.

        Raises:
            UsageError: the options conflict.
            HardwareMissingError: there are too few devices.
        """
        if nodes > 1 and (cls.one_node or cls.one_process):
            raise UsageError(f"{cls.name} works within one node", "Use nccl between nodes, or leave --nnodes out.")
        if devices * nodes < cls.least_devices:
            raise HardwareMissingError(
                f"{cls.name} needs at least {cls.least_devices} devices, and this job has {devices * nodes}",
                f"On one device there is nothing to communicate: use {INDEPENDENT}.",
            )
        if precision == "fp16" and not cls.scales_losses:
            raise UsageError(
                f"{cls.name} does not go with --precision fp16: its processes cannot agree which steps to leave out",
                "Use --precision bf16, which needs no gradient scaling.",
            )

    @classmethod
    def candidates(cls, compress: Compress | None) -> tuple[Candidate, ...]:
        """Return the candidates for `gpudiag recommend`. With `compress`, gradients may be rounded for transport."""
        plain = Candidate(strategy=cls.name, framework=cls.framework)
        rounded = compress is not None and cls.rounding_pays
        return (plain, Candidate(strategy=cls.name, compress=compress)) if rounded else (plain,)

    @classmethod
    def why_not(cls, facts: Facts, candidate: Candidate, devices: int) -> str | None:
        """Return why a candidate is not recommended on `devices` devices of this machine; None without a reason.

        The size of /dev/shm does not matter, because shared memory is an anonymous file.
        """
        on_gpu = any(gpu.visible for gpu in facts.gpus)
        if cls.needs_gpu and not on_gpu:
            return "it needs GPUs, and there is none to use"
        if devices < cls.least_devices:
            return "one device does not communicate"
        # The driver ignores a limit of a few MB, but pins no memory if the limit is 0.
        if cls.locks_memory and on_gpu and facts.host.memlock_bytes == 0:
            return "memory cannot be locked (limit 0 KiB); raise `ulimit -l`"
        if candidate.lossy and not on_gpu:
            return "the CPU rounds slower than it sends"
        return None

    @classmethod
    def transport(cls, candidate: Candidate, *, on_gpu: bool, p2p: bool) -> str | None:
        """Return the name of this strategy's all-reduce in measurements (`Collective.strategy`); None if there is none.

        Args:
            candidate: the strategy with its options.
            on_gpu: True for GPUs, False for CPU processes.
            p2p: False if peer access is switched off.
        """
        return None

    @classmethod
    def cost(cls, now: Situation, candidate: Candidate) -> Cost | None:
        """Return the cost of this strategy's communication; None if unknown.

        `now` has the model, the number of devices, and the rates of the machine's paths in GB/s (1e6 bytes per ms).
        `candidate.wire` is the number of bytes that are communicated per byte of gradients.
        """
        return None

    @classmethod
    def code(cls, candidate: Candidate) -> tuple[str, ...]:
        """Return lines of code that a user adds to a training loop to use this strategy."""
        file = f"{cls.__module__.replace('.', '/')}.py"
        return (f"# see {file}; `gpudiag profile --strategy {cls.name}` runs it",)
