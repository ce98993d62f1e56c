"""What marking the calls of modules costs a recording with operators, in CPU time of the training thread.

    python benchmarks/module_marks.py

Windows without a profiler, with operators, and with marks too take turns; the least step of each counts: other work on
the machine only adds to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from gpudiag.training.frameworks.pytorch.modules import MarkedModules
from gpudiag.training.models.pytorch.imagenet import ResNet

#: (rounds, steps of each window)
TINY, LARGE = (40, 12), (15, 4)


def tiny() -> tuple[nn.Module, torch.Tensor]:
    """60 blocks of three layers that have next to nothing to do."""
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8)) for _ in range(60)]
    return nn.Sequential(*blocks), torch.randn(4, 8)


def resnet50() -> tuple[nn.Module, torch.Tensor]:
    """One small image."""
    return ResNet(), torch.randn(1, 3, 64, 64)


def step_of(model: nn.Module, batch: torch.Tensor) -> Callable[[], None]:
    """A step of training."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return step


def calls_of(model: nn.Module, step: Callable[[], None]) -> int:
    """How many modules a step calls."""
    seen: list[nn.Module] = []
    hooks = [module.register_forward_pre_hook(lambda module, _: seen.append(module)) for module in model.modules()]
    step()
    for hook in hooks:
        hook.remove()
    return len(seen)


def timed_ms(step: Callable[[], None], steps: int) -> float:
    """The least step."""
    times = []
    for _ in range(steps):
        begin = time.thread_time()
        step()
        times.append(time.thread_time() - begin)
    return 1e3 * min(times)


def recorded_ms(step: Callable[[], None], steps: int, *, marked: bool) -> float:
    """The least step of a recording."""
    marks = MarkedModules()
    with profile(activities=[ProfilerActivity.CPU]):
        if marked:
            marks.start()
        step()
        found = timed_ms(step, steps)
        marks.stop()
    return found


def main() -> None:
    """Print a line per model."""
    torch.set_num_threads(1)
    for name, (model, batch), (rounds, steps) in (("tiny", tiny(), TINY), ("resnet50", resnet50(), LARGE)):
        step = step_of(model, batch)
        calls = calls_of(model, step)
        windows = [
            (timed_ms(step, steps), recorded_ms(step, steps, marked=False), recorded_ms(step, steps, marked=True))
            for _ in range(rounds)
        ]
        plain, operators, marks = (min(times) for times in zip(*windows, strict=True))
        each = 1e3 * (marks - operators) / calls
        print(
            f"{name}: {calls} calls; {plain:.2f} ms alone, {operators:.2f} with operators, {marks:.2f} with marks too: "
            f"{each:.1f} us per call"
        )


if __name__ == "__main__":
    main()
