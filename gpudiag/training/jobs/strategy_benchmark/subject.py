"""Prepare the workload of a benchmark, measure the phases of its step, and train it with one strategy."""

from __future__ import annotations

import copy
import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn

from gpudiag.model.benchmarks.prediction import Candidate, Compute, Gradients
from gpudiag.model.benchmarks.strategy_benchmark import Entry
from gpudiag.model.job import CommunicationOptions, computed_in
from gpudiag.training.frameworks.pytorch.runtime import clock_for
from gpudiag.training.jobs.data.batches import batches
from gpudiag.training.jobs.precision import Arithmetic
from gpudiag.training.jobs.strategy_benchmark.world import World
from gpudiag.training.models.registry import load_workload, workload_entry
from gpudiag.training.strategies.pytorch.fsdp import shards_of
from gpudiag.training.strategies.registry import load_strategy, strategy_entry

#: Number of steps whose phases are timed.
_STEPS = 8
#: A device is kept busy for this many step times before each step, so that the step never waits for the host.
_HELD_STEPS = 1.5
#: Maximum number of clock cycles per ms of a GPU.
_CYCLES_PER_MS = 2_000_000


class Subject:
    """The workload that all strategies train, with a fixed batch on this process's device."""

    def __init__(self, world: World, entry: Entry) -> None:
        self.world = world
        on_gpu = world.on_gpu
        defaults = workload_entry(entry.workload)
        self.name = entry.workload
        self.batch_size = entry.batch_size or defaults.default_batch(on_gpu=on_gpu)
        self.precision = computed_in(entry.precision, on_gpu=on_gpu)
        self.memory_format = entry.memory_format
        self._layout = torch.channels_last if entry.memory_format == "nhwc" else torch.contiguous_format
        self.workload = load_workload(entry.workload, on_gpu=on_gpu)
        self.arithmetic = Arithmetic(self.precision, world.device)
        self.batch = self._make_batch(self.batch_size)
        self._initial_model = self._make_model()

    def _make_batch(self, size: int) -> tuple[Tensor, Tensor]:
        source = batches(
            self.workload, "device", batch_size=size, workers=0, device=self.world.device, seed=self.world.rank
        )
        inputs, target = next(iter(source))
        return inputs, target

    def larger_batch(self, times: int) -> tuple[Tensor, Tensor]:
        """Make a batch for `times` devices, on this process's device."""
        return self._make_batch(times * self.batch_size)

    def fresh_model(self) -> nn.Module:
        """Return a new model on the device, with the same initial values on every rank and in every call."""
        # Copying 138 million values takes a millisecond on a GPU. Drawing random values takes seconds on a CPU.
        return copy.deepcopy(self._initial_model)

    def _make_model(self) -> nn.Module:
        torch.manual_seed(0)
        model = self.workload.model().to(self.world.device)
        if self.memory_format == "nhwc":
            model = model.to(memory_format=self._layout)  # type: ignore[call-overload]  # missing from torch's stubs
        return model

    def prepared(self, inputs: Tensor) -> Tensor:
        """Convert inputs to the model's input."""
        x = self.workload.prepare(inputs)
        return x.contiguous(memory_format=self._layout) if self.memory_format == "nhwc" else x

    def gradients(self, step_ms: float, *, longest_s: float) -> Gradients:
        """Measure the phases of a step without communication, and the time at which each gradient is ready.

        Args:
            step_ms: step time without communication, in ms.
            longest_s: seconds after which no further step begins, except that at least two steps are measured.
        """
        until = time.perf_counter() + longest_s
        model = self.fresh_model()
        optimizer = self.workload.optimizer(model.parameters())
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        ready: dict[int, Any] = {}
        clock = _Marks(self.world)
        for number, parameter in enumerate(trained):
            hooked: Any = parameter  # the method has no types
            # The default argument binds the number of this iteration.
            hooked.register_post_accumulate_grad_hook(lambda _, number=number: ready.__setitem__(number, clock.mark()))
        phases: list[tuple[float, float, float]] = []
        arrivals: list[dict[int, float]] = []
        inputs, target = self.batch
        for number in range(_STEPS):
            if number > 1 and time.perf_counter() > until:
                break
            ready.clear()
            clock.hold(_HELD_STEPS * step_ms)
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
            phases.append(
                (clock.between(start, forward), clock.between(forward, backward), clock.between(backward, end))
            )
            arrivals.append({number: clock.between(forward, mark) for number, mark in ready.items()})
        # Discard the first half of the steps as warm-up.
        phases, arrivals = phases[len(phases) // 2 :], arrivals[len(phases) // 2 :]
        forward_ms, backward_ms, update_ms = (statistics.median(times) for times in zip(*phases, strict=True))
        ready_ms = {number: statistics.median(step[number] for step in arrivals) for number in arrivals[-1]}
        # If two gradients are ready at the same time, the later parameter comes first, as in backward.
        order = sorted(ready_ms, key=lambda number: (ready_ms[number], -number))
        total_ms = forward_ms + backward_ms + update_ms
        # If the host cannot launch a whole step ahead, the phases include waits. Then scale them to the step time.
        scale = min(1.0, step_ms / total_ms) if total_ms else 1.0
        # `ready` are shares of backward. A median over steps may be slightly outside 0 to 1.
        return Gradients(
            name=self.name,
            sizes=tuple(trained[number].numel() * trained[number].element_size() for number in order),
            ready=tuple(min(1.0, max(0.0, ready_ms[number] / max(backward_ms, 1e-9))) for number in order),
            compute=Compute(
                forward_ms=forward_ms * scale,
                backward_ms=backward_ms * scale,
                update_ms=update_ms * scale,
                step_ms=step_ms,
            ),
            batch_size=self.batch_size,
            input_bytes=inputs.numel() * inputs.element_size(),
            blocks=len(shards_of(model)),
        )


class StrategyTrainer:
    """Train a copy of the subject's model with one candidate strategy.

    All ranks must create the trainer together, even if the strategy trains only in rank 0.
    """

    def __init__(self, world: World, subject: Subject, candidate: Candidate) -> None:
        self.candidate, self._world, self._subject = candidate, world, subject
        entry = strategy_entry(candidate.strategy)
        self._trains = not entry.one_process or world.rank == 0
        devices = world.size if entry.one_process else 1
        options = CommunicationOptions(
            bucket_mb=candidate.bucket_mb, compress=candidate.compress, ps_device=candidate.ps_device
        )
        self.strategy = load_strategy(candidate.strategy, world.device, options, devices)
        self._clock = clock_for(world.device)
        if not self._trains:
            return
        self._batch = subject.batch if devices == 1 else subject.larger_batch(devices)
        with world.acting(self.strategy.backend):
            self._model = self.strategy.wrap(subject.fresh_model())
            self._optimizer = self.strategy.optimizer(self._model, subject.workload.optimizer)

    def step(self) -> None:
        """Run forward, backward, communication and update, as the training loop of `gpudiag profile` does."""
        if not self._trains:
            return
        subject = self._subject
        inputs, target = self._batch
        with subject.arithmetic.forward():
            loss = subject.workload.loss(self._model(subject.prepared(inputs)), target)
        subject.arithmetic.backward(loss)
        self.strategy.exchange(self._model)
        subject.arithmetic.step(self._optimizer)
        self._optimizer.zero_grad(set_to_none=True)

    def timed(self, steps: int, *, run_in: int) -> list[float]:
        """Train `run_in` untimed steps, then `steps` timed steps. Return their times in ms; [] if this rank is idle."""
        if not self._trains:
            return []
        with self._world.acting(self.strategy.backend):
            for _ in range(run_in):
                self.step()
            self._clock.restart()
            for _ in range(steps):
                self.step()
                self._clock.mark()
            times: list[float] = self._clock.read()
        if not all(torch.isfinite(torch.tensor(times))):
            raise RuntimeError("step times are not finite")
        return times

    def close(self) -> None:
        """Release the model, and all resources of the strategy except its process group."""
        with self._world.acting(self.strategy.backend):
            self.strategy.release()
        self.__dict__.pop("_model", None)
        self.__dict__.pop("_optimizer", None)


class _Marks:
    """Record timestamps on the GPU's stream, or on the host's clock for training on the CPU."""

    def __init__(self, world: World) -> None:
        self._world = world

    def mark(self) -> Any:
        if not self._world.on_gpu:
            return time.perf_counter_ns()
        make: Any = torch.cuda.Event
        event = make(enable_timing=True)
        event.record(torch.cuda.current_stream(self._world.device))
        return event

    def hold(self, ms: float) -> None:
        """Keep a GPU's stream busy for at least `ms`, so that the host gets ahead. On a CPU, do nothing."""
        sleep: Any = getattr(torch.cuda, "_sleep", None)
        if self._world.on_gpu and sleep is not None:
            sleep(int(ms * _CYCLES_PER_MS))

    def between(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) if self._world.on_gpu else (end - begin) / 1e6
