"""Define the predicted cost of a strategy, and the facts about the trained model that a prediction needs."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudiag.model.job import DEFAULT_FRAMEWORK
from gpudiag.model.quantities import Bytes, Count, Devices, Difference, Milliseconds, Ordinal, Rate

GRADIENTS_SCHEMA = "gpudiag/gradients/1"

Compress = Literal["bf16", "fp16"]


class Compute(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a step without communication on one device, with the batch to be trained.

    Attributes:
        forward_ms: device time of forward and loss.
        backward_ms: device time of backward.
        update_ms: device time of the optimizer.
        step_ms: the whole step with input and launch gaps; at least the sum of the other times. In the remaining time
            the device waits for the host, so that communication in this time costs nothing.
        source: `measured`, `given`, or the method of the estimate in words.
    """

    forward_ms: Milliseconds
    backward_ms: Milliseconds
    update_ms: Milliseconds
    step_ms: Milliseconds
    source: str = "measured"

    @property
    def waiting_ms(self) -> float:
        """Return the time in which the device waits for the host."""
        return max(0.0, self.step_ms - self.forward_ms - self.backward_ms - self.update_ms)


class Gradients(msgspec.Struct, frozen=True, kw_only=True):
    """A model's gradients for communication (`gpudiag/gradients/1`).

    Attributes:
        name: name of the workload, shown to users.
        sizes: bytes of each parameter's gradient, in the order in which backward computes them.
        ready: time at which each gradient is ready, as a share of backward (0 to 1, ascending); empty if unknown.
        compute: a step without communication; None if unknown.
        batch_size: samples per device and step of `compute`.
        input_bytes: size of one batch per device.
        blocks: number of modules that FSDP would gather separately, plus one for all other parameters; None if unknown.
    """

    schema: str = GRADIENTS_SCHEMA
    name: str = ""
    sizes: tuple[Bytes, ...]
    ready: tuple[Rate, ...] = ()
    compute: Compute | None = None
    batch_size: Count | None = None
    input_bytes: Bytes = 0
    blocks: Count | None = None

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all gradients."""
        return sum(self.sizes)


class Candidate(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A strategy with its options, as in `gpudiag profile`. `framework` distinguishes strategies of the same name."""

    strategy: str
    compress: Compress | None = None
    bucket_mb: Rate | None = None
    ps_device: Ordinal | None = None
    framework: str = DEFAULT_FRAMEWORK

    @property
    def label(self) -> str:
        """Return the strategy and its options, for example `nccl --compress bf16`."""
        return " ".join((self.strategy, *self.options))

    @property
    def options(self) -> tuple[str, ...]:
        """Return the command-line options in addition to `--strategy`."""
        words: list[str] = []
        for option, value in (
            ("--compress", self.compress),
            ("--bucket-mb", None if self.bucket_mb is None else f"{self.bucket_mb:g}"),
            ("--ps-device", None if self.ps_device is None else str(self.ps_device)),
        ):
            if value is not None:
                words += [option, value]
        return tuple(words)

    @property
    def lossy(self) -> bool:
        """Return whether gradients lose precision."""
        return self.compress is not None

    @property
    def wire(self) -> float:
        """Return the bytes that are communicated per byte of gradients."""
        return 0.5 if self.lossy else 1.0


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted cost of one candidate on `devices` devices.

    Attributes:
        step_ms: the whole step; None if the compute is unknown.
        exposed_ms: time that communication adds to the step.
        exchange_ms: time of communication alone.
        reason: reason for this cost, in one line.
        assumed: name of a figure that was not measured → assumed value.
        cannot: reason why the candidate cannot run here, so that the figures are meaningless; None if it can.
    """

    candidate: Candidate
    devices: Devices
    step_ms: Milliseconds | None = None
    exposed_ms: Difference = 0.0
    exchange_ms: Milliseconds = 0.0
    reason: str = ""
    assumed: dict[str, str] = {}
    cannot: str | None = None
