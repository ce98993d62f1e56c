"""What the strategies of a benchmark train: a workload, its batch, and what a step of it takes without any exchange."""

from __future__ import annotations

import copy
import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn

from gpudiag.model.benchmarks.prediction import Compute, Gradients
from gpudiag.model.benchmarks.strategy_benchmark import Entry
from gpudiag.model.job import computed_in
from gpudiag.training.jobs.data.batches import batches
from gpudiag.training.jobs.precision import Arithmetic
from gpudiag.training.jobs.strategy_benchmark.world import World
from gpudiag.training.models.registry import load_workload, workload_entry
from gpudiag.training.strategies.pytorch.fsdp import shards_of

#: Steps of which the parts are timed.
_STEPS = 8
#: A device is held back this many times as long as a step takes, so that what it then does waits for no host.
_HELD = 1.5
#: Clock cycles per ms of a GPU, at most about.
_CYCLES_PER_MS = 2_000_000


class Subject:
    """One workload on this process's device. The batch lies on the device: the exchange is what is compared.

    Args:
        world: the processes.
        entry: what is asked for.
    """

    def __init__(self, world: World, entry: Entry) -> None:
        self.world = world
        on_gpu = world.on_gpu
        defaults = workload_entry(entry.workload)
        self.name = entry.workload
        self.batch_size = entry.batch_size or (defaults.gpu_batch if on_gpu else defaults.cpu_batch)
        self.precision = computed_in(entry.precision, on_gpu=on_gpu)
        self.memory_format = entry.memory_format
        self._layout = torch.channels_last if entry.memory_format == "nhwc" else torch.contiguous_format
        self.workload = load_workload(entry.workload, on_gpu=on_gpu)
        self.arithmetic = Arithmetic(self.precision, world.device)
        self.batch = self._make_batch(self.batch_size)
        self._pristine = self._made()

    def _make_batch(self, size: int) -> tuple[Tensor, Tensor]:
        source = batches(
            self.workload, "device", batch_size=size, workers=0, device=self.world.device, seed=self.world.rank
        )
        inputs, target = next(iter(source))
        return inputs, target

    def larger_batch(self, times: int) -> tuple[Tensor, Tensor]:
        """A batch for so many devices, on this one."""
        return self._make_batch(times * self.batch_size)

    def fresh_model(self) -> nn.Module:
        """The model on the device, the same on every rank and in every call."""
        # Drawing 138 million values takes seconds on a CPU, copying them on a GPU a millisecond.
        return copy.deepcopy(self._pristine)

    def _made(self) -> nn.Module:
        torch.manual_seed(0)
        model = self.workload.model().to(self.world.device)
        if self.memory_format == "nhwc":
            model = model.to(memory_format=self._layout)  # type: ignore[call-overload]  # missing from torch's stubs
        return model

    def prepared(self, inputs: Tensor) -> Tensor:
        """What the model takes."""
        x = self.workload.prepare(inputs)
        return x.contiguous(memory_format=self._layout) if self.memory_format == "nhwc" else x

    def parts(self, step_ms: float, *, longest_s: float) -> Gradients:
        """Sizes of the gradients, the parts of a step without exchange, and when each gradient is there.

        Args:
            step_ms: a whole step without exchange.
            longest_s: after so long no further step is begun, once there are two.
        """
        until = time.perf_counter() + longest_s
        model = self.fresh_model()
        optimizer = self.workload.optimizer(model.parameters())
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        made: dict[int, Any] = {}
        clock = _Marks(self.world)
        for number, parameter in enumerate(trained):
            # The loop's number is bound now; hooks are called in the order in which backward makes gradients.
            hooked: Any = parameter
            hooked.register_post_accumulate_grad_hook(lambda _, number=number: made.__setitem__(number, clock.mark()))
        parts: list[tuple[float, float, float]] = []
        arrivals: list[dict[int, float]] = []
        inputs, target = self.batch
        for number in range(_STEPS):
            if number > 1 and time.perf_counter() > until:
                break
            made.clear()
            clock.hold_back(_HELD * step_ms)
            start = clock.mark()
            with self.arithmetic.forward():
                loss = self.workload.loss(model(self.prepared(inputs)), target)
            forward = clock.mark()
            self.arithmetic.backward(loss)
            backward = clock.mark()
            self.arithmetic.step(optimizer)
            optimizer.zero_grad(set_to_none=True)
            end = clock.mark()
            self.world.settle()
            parts.append(
                (clock.between(start, forward), clock.between(forward, backward), clock.between(backward, end))
            )
            arrivals.append({number: clock.between(forward, when) for number, when in made.items()})
        kept, seen = parts[len(parts) // 2 :], arrivals[len(parts) // 2 :]
        forward_ms, backward_ms, update_ms = (statistics.median(row[part] for row in kept) for part in range(3))
        when = {number: statistics.median(row[number] for row in seen) for number in seen[-1]}
        order = sorted(when, key=lambda number: (when[number], -number))
        sizes = tuple(trained[number].numel() * trained[number].element_size() for number in order)
        longest = max(backward_ms, 1e-9)
        together = forward_ms + backward_ms + update_ms
        # Where the host could not launch all of a step ahead, the parts hold its time too.
        shrink = min(1.0, step_ms / together) if together else 1.0
        return Gradients(
            name=self.name,
            sizes=sizes,
            ready=tuple(min(1.0, max(0.0, when[number] / longest)) for number in order),
            compute=Compute(
                forward_ms=forward_ms * shrink,
                backward_ms=backward_ms * shrink,
                update_ms=update_ms * shrink,
                step_ms=step_ms,
            ),
            batch_size=self.batch_size,
            input_bytes=inputs.numel() * inputs.element_size(),
            blocks=len(shards_of(model)),
        )


class _Marks:
    """Instants on the device, or on the host where that computes."""

    def __init__(self, world: World) -> None:
        self._world = world

    def mark(self) -> Any:
        if not self._world.on_gpu:
            return time.perf_counter_ns()
        make: Any = torch.cuda.Event
        event = make(enable_timing=True)
        event.record(torch.cuda.current_stream(self._world.device))
        return event

    def hold_back(self, ms: float) -> None:
        """Let a GPU's stream wait, so that the host gets ahead. A kernel that counts clock cycles does it."""
        sleep: Any = getattr(torch.cuda, "_sleep", None)
        if self._world.on_gpu and sleep is not None:
            sleep(int(ms * _CYCLES_PER_MS))

    def between(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) if self._world.on_gpu else (end - begin) / 1e6
