"""Find strategies by name: classes with a `name` in `pytorch`, `tensorflow` and `tensorflow1`, and entry points.

Another package can add a strategy with an entry point in the group `gpudiag.strategies`:

    [project.entry-points."gpudiag.strategies"]
    ring = "their_package.ring:Ring"

This module imports no framework.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
from collections.abc import Iterable, Iterator
from functools import cache
from types import ModuleType
from typing import Any, cast

from gpudiag.errors import UsageError, there_are
from gpudiag.model.benchmarks.prediction import Candidate
from gpudiag.model.job import DEFAULT_FRAMEWORK, CommunicationOptions
from gpudiag.training.strategies import tensorflow1
from gpudiag.training.strategies.pytorch_strategy import PytorchStrategy
from gpudiag.training.strategies.strategy import Strategy
from gpudiag.training.strategies.tensorflow_strategy import TensorflowStrategy

ENTRY_POINTS = "gpudiag.strategies"


@cache
def strategies(framework: str = DEFAULT_FRAMEWORK) -> dict[str, type[Strategy]]:
    """Return the strategies of a framework by name, in display order; empty for an unknown framework.

    Raise UsageError if two strategies have the same name, or an entry point cannot be loaded.
    """
    by_name: dict[str, type[Strategy]] = {}
    for strategy in sorted(_all_strategies(), key=lambda strategy: (strategy.list_order, strategy.name)):
        if strategy.framework == framework and by_name.setdefault(strategy.name, strategy) is not strategy:
            raise UsageError(
                f"there are two strategies '{strategy.name}', in {by_name[strategy.name].__module__} and in "
                f"{strategy.__module__}",
                "Uninstall the package of one of them.",
            )
    return by_name


def _all_strategies() -> Iterator[type[Strategy]]:
    """Yield gpudiag's strategies and those of entry points; raise UsageError if a strategy cannot be loaded."""
    yield from _strategies_in(tensorflow1)
    for framework in ("pytorch", "tensorflow"):
        package = importlib.import_module(f"gpudiag.training.strategies.{framework}")
        for module in pkgutil.iter_modules(package.__path__):
            yield from _strategies_in(importlib.import_module(f"{package.__name__}.{module.name}"))
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            yield entry.load()
        except Exception as error:
            raise UsageError(
                f"the strategy {entry.name} of {entry.value} cannot be loaded: {type(error).__name__}: {error}",
                "Mend that package, or uninstall it.",
            ) from error


def _strategies_in(module: ModuleType) -> Iterator[type[Strategy]]:
    """Yield the strategies that `module` defines. Base classes are skipped, because they have no `name`."""
    for value in vars(module).values():
        defined_here = isinstance(value, type) and value.__module__ == module.__name__
        if defined_here and issubclass(value, Strategy) and "name" in vars(value):
            yield value


def strategy_entry(name: str, framework: str = DEFAULT_FRAMEWORK) -> type[Strategy]:
    """Return the framework's strategy of this name; raise UsageError, with all names as hint, if there is none."""
    known = strategies(framework)
    if name not in known:
        with_framework = "" if framework == DEFAULT_FRAMEWORK else f" with --framework {framework}"
        raise UsageError(f"there is no strategy '{name}'{with_framework}", there_are(name, known))
    return known[name]


def default_strategy(framework: str, *, on_gpu: bool) -> str:
    """Return the name of a framework's default strategy on GPUs or on CPUs."""
    device = "cuda" if on_gpu else "cpu"
    return next(name for name, strategy in strategies(framework).items() if strategy.default_on == device)


def check_communication(
    strategy: type[Strategy], options: CommunicationOptions, *, devices: int, nodes: int, precision: str | None
) -> None:
    """Raise UsageError if an option does not apply to the strategy, or if `Strategy.check` refuses the arguments."""
    for name in options.given():
        if name not in strategy.takes:
            others = ", ".join(other.name for other in strategies(strategy.framework).values() if name in other.takes)
            raise UsageError(
                f"--{name.replace('_', '-')} does not apply to {strategy.name}", f"It applies to {others}."
            )
    strategy.check(options, devices=devices, nodes=nodes, precision=precision)


def load_strategy(
    name: str, device: Any, options: CommunicationOptions | None = None, devices: int = 1
) -> PytorchStrategy:
    """Make the PyTorch strategy for a process that drives `devices` devices. `device` is the first `torch.device`."""
    return pytorch_strategy(name)(device, options, devices)


def pytorch_strategy(name: str) -> type[PytorchStrategy]:
    """Return the PyTorch strategy of this name; raise UsageError if there is none."""
    return cast("type[PytorchStrategy]", strategy_entry(name))


def tensorflow_strategy(name: str) -> type[TensorflowStrategy]:
    """Return the TensorFlow strategy of this name; raise UsageError if there is none."""
    return cast("type[TensorflowStrategy]", strategy_entry(name, "tensorflow"))


def transports_of(candidates: Iterable[Candidate], *, on_gpu: bool, p2p: bool) -> dict[str, Candidate]:
    """Return the first candidate that uses each transport, by the name that `Strategy.transport` returns."""
    first_users: dict[str, Candidate] = {}
    for candidate in candidates:
        transport = strategy_entry(candidate.strategy).transport(candidate, on_gpu=on_gpu, p2p=p2p)
        if transport is not None:
            first_users.setdefault(transport, candidate)
    return first_users
