"""What is predicted of a strategy, and what the prediction needs to know of the model that is trained."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudiag.model.job import DEFAULT_FRAMEWORK
from gpudiag.model.quantities import Bytes, Count, Devices, Difference, Milliseconds, Ordinal, Rate

GRADIENTS_SCHEMA = "gpudiag/gradients/1"

Compress = Literal["bf16", "fp16"]


class Compute(msgspec.Struct, frozen=True, kw_only=True):
    """One step without any exchange, in ms of one device, at the batch that will be trained.

    Attributes:
        forward_ms: forward and loss, the device's own time.
        backward_ms: backward.
        update_ms: the optimizer.
        step_ms: the whole step, input and launch gaps included; at least the sum of the three. What is left of it is
            time in which the device waits for the host, and in which an exchange costs nothing.
        source: `measured`, `given`, or how it was estimated, in words.
    """

    forward_ms: Milliseconds
    backward_ms: Milliseconds
    update_ms: Milliseconds
    step_ms: Milliseconds
    source: str = "measured"

    @property
    def waiting_ms(self) -> float:
        """Of the step, what the device waits for the host."""
        return max(0.0, self.step_ms - self.forward_ms - self.backward_ms - self.update_ms)


class Gradients(msgspec.Struct, frozen=True, kw_only=True):
    """A model as an exchange sees it (`gpudiag/gradients/1`).

    Attributes:
        name: the workload, for people.
        sizes: bytes of each parameter's gradient, in the order in which backward makes them.
        ready: when each is there, as a share of backward (0 to 1, rising); empty where unknown.
        compute: a step without exchange; None where unknown.
        batch_size: samples per device and step, which `compute` is for.
        input_bytes: of one batch per device.
        blocks: parts of the model that FSDP would gather by themselves, the rest being one; None where unknown.
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
        """Bytes of all gradients."""
        return sum(self.sizes)


class Candidate(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A strategy with its options, as `gpudiag profile` takes them.

    `framework` is what would train: its strategies may have the same names.
    """

    strategy: str
    compress: Compress | None = None
    bucket_mb: Rate | None = None
    ps_device: Ordinal | None = None
    framework: str = DEFAULT_FRAMEWORK

    @property
    def label(self) -> str:
        """The strategy and, where there are, its options: `nccl --compress bf16`."""
        return " ".join((self.strategy, *self.options))

    @property
    def options(self) -> tuple[str, ...]:
        """The command line's options behind `--strategy`."""
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
        """Whether gradients lose digits on the way."""
        return self.compress is not None

    @property
    def wire(self) -> float:
        """Bytes that travel per byte of gradients."""
        return 0.5 if self.lossy else 1.0


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What one candidate is expected to cost on `devices` devices.

    Attributes:
        candidate: which.
        devices: how many.
        step_ms: the step; None where the compute is not known.
        exposed_ms: of the step, what the exchange adds to the step without it.
        exchange_ms: the exchange alone, beside nothing.
        reason: why it costs that, in one line.
        assumed: figures that were not measured, and what was taken for them.
        cannot: why it cannot run here; the figures are then without meaning.
    """

    candidate: Candidate
    devices: Devices
    step_ms: Milliseconds | None = None
    exposed_ms: Difference = 0.0
    exchange_ms: Milliseconds = 0.0
    reason: str = ""
    assumed: dict[str, str] = {}
    cannot: str | None = None
