"""All that is known of a strategy, as programs ask for it that do not train; a strategy is one class in one file."""

from __future__ import annotations

from typing import ClassVar, Literal

from gpudiag.errors import HardwareMissingError, UsageError
from gpudiag.model.benchmarks.prediction import Candidate, Compress
from gpudiag.model.facts import Facts
from gpudiag.model.job import INDEPENDENT, CommunicationOptions
from gpudiag.prediction.cost import Cost
from gpudiag.prediction.situation import Situation

#: Place in lists of one that does not say: behind all that gpudiag has.
_LAST = 1000


class Strategy:
    """How the devices of a job keep their models the same: what each subclass says of itself.

    Commands read these, so that no file of a strategy imports a framework before it trains. How it trains is what
    `PytorchStrategy` and `TensorflowStrategy` ask for beside.

    Attributes:
        name: as on the command line.
        summary: one line for help and documentation.
        framework: what trains.
        listed: its place in lists; smaller comes first.
        special: of equally fast ones the one with the smallest is recommended: what people know comes before what is
            special.
        default_on: taken on such devices unless told otherwise.
        needs_gpu: it cannot run on CPU processes.
        one_process: one process drives all devices of a node; otherwise each device has a process of its own.
        one_node: its processes must share memory, so they must be on one node.
        least_devices: with fewer it is the same as `independent` and refused.
        locks_memory: its processes lock host memory, which the system may forbid.
        scales_losses: it can train with fp16 under gradient scaling, which must see the exchanged gradients.
        takes: names of the `ExchangeOptions` that apply to it.
        exchanges: False for the one that does not, and whose processes therefore train different models.
        rounding_pays: it comes into question with gradients that are rounded on the way, too.
        through_host: what it exchanges is copied to host memory and back; otherwise copies to and from the host are
            not its own.
        launched_ahead: its exchange is queued on the devices and waits for no host, so that it costs nothing while a
            device has nothing else to do.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    framework: ClassVar[str]
    listed: ClassVar[int] = _LAST
    special: ClassVar[int] = _LAST
    default_on: ClassVar[Literal["cuda", "cpu"] | None] = None
    needs_gpu: ClassVar[bool] = False
    one_process: ClassVar[bool] = False
    one_node: ClassVar[bool] = False
    least_devices: ClassVar[int] = 1
    locks_memory: ClassVar[bool] = False
    scales_losses: ClassVar[bool] = True
    takes: ClassVar[tuple[str, ...]] = ()
    communications: ClassVar[bool] = True
    rounding_pays: ClassVar[bool] = False
    through_host: ClassVar[bool] = False
    launched_ahead: ClassVar[bool] = False

    @classmethod
    def processes(cls, devices: int) -> int:
        """How many processes train on `devices` devices of one node."""
        return 1 if cls.one_process else devices

    @classmethod
    def check(cls, options: CommunicationOptions, *, devices: int, nodes: int, precision: str | None) -> None:
        """Refuse what this strategy cannot do.

        Args:
            options: what was asked for; all of them are among `takes`.
            devices: devices on each node.
            nodes: nodes in the job.
            precision: as on the command line; None when left open.

        Raises:
            UsageError: things that do not go together.
            HardwareMissingError: too few devices.
        """
        if nodes > 1 and (cls.one_node or cls.one_process):
            raise UsageError(f"{cls.name} works within one node", "Use nccl between nodes, or leave --nnodes out.")
        if devices * nodes < cls.least_devices:
            raise HardwareMissingError(
                f"{cls.name} needs at least {cls.least_devices} devices, and this job has {devices * nodes}",
                f"On one device there is nothing to exchange: use {INDEPENDENT}.",
            )
        if precision == "fp16" and not cls.scales_losses:
            raise UsageError(
                f"{cls.name} does not go with --precision fp16: its processes cannot agree which steps to leave out",
                "Use --precision bf16, which needs no gradient scaling.",
            )

    @classmethod
    def candidates(cls, compress: Compress | None) -> tuple[Candidate, ...]:
        """The forms in which it comes into question for `gpudiag recommend`.

        Args:
            compress: to what gradients may be rounded on the way; None for not.
        """
        plain = Candidate(strategy=cls.name, framework=cls.framework)
        rounded = compress is not None and cls.rounding_pays
        return (plain, Candidate(strategy=cls.name, compress=compress)) if rounded else (plain,)

    @classmethod
    def why_not(cls, facts: Facts, candidate: Candidate, devices: int) -> str | None:
        """Why this candidate is not recommended on so many devices of this machine; None where it may be.

        The size of /dev/shm is no reason: what processes share here has no name in any directory, and is not bounded
        by it.
        """
        on_gpu = any(gpu.visible for gpu in facts.gpus)
        if cls.needs_gpu and not on_gpu:
            return "it needs GPUs, and there is none to use"
        if devices < cls.least_devices:
            return "one device exchanges nothing"
        # CUDA pins through the driver, which limits of a few MB do not keep from it; 0 is a ban.
        if cls.locks_memory and on_gpu and facts.host.memlock_bytes == 0:
            return "memory cannot be locked (limit 0 KiB); raise `ulimit -l`"
        if candidate.lossy and not on_gpu:
            return "the CPU rounds slower than it sends"
        return None

    @classmethod
    def transport(cls, candidate: Candidate, *, on_gpu: bool, p2p: bool) -> str | None:
        """Name of the all-reduce that its exchange consists of (`Collective.strategy`); None where it has none.

        Args:
            candidate: the strategy with its options.
            on_gpu: GPUs train, not CPU processes.
            p2p: False where peer access is switched off.
        """
        return None

    @classmethod
    def cost(cls, now: Situation, candidate: Candidate) -> Cost | None:
        """What its exchange costs on this machine with this model; None where nobody knows."""
        return None

    @classmethod
    def code(cls, candidate: Candidate) -> tuple[str, ...]:
        """The lines for a training loop of the user's own."""
        file = f"{cls.__module__.replace('.', '/')}.py"
        return (f"# see {file}; `gpudiag profile --strategy {cls.name}` runs it",)
