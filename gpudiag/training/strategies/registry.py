"""The strategies by name. Each is found by its file in `pytorch/` or `tensorflow/`, or by an entry point.

Another package adds one by naming its class in the group `gpudiag.strategies`:

    [project.entry-points."gpudiag.strategies"]
    ring = "their_package.ring:Ring"

Nothing here imports a framework.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, cast

from gpudiag.errors import UsageError, there_are
from gpudiag.model.benchmarks.prediction import Candidate
from gpudiag.model.job import DEFAULT_FRAMEWORK, CommunicationOptions
from gpudiag.training.strategies.pytorch_strategy import PytorchStrategy
from gpudiag.training.strategies.strategy import Strategy
from gpudiag.training.strategies.tensorflow1 import STRATEGIES as TENSORFLOW_1
from gpudiag.training.strategies.tensorflow_strategy import TensorflowStrategy

ENTRY_POINTS = "gpudiag.strategies"


@cache
def strategies(framework: str = DEFAULT_FRAMEWORK) -> dict[str, type[Strategy]]:
    """The strategies of a framework by name, in the order of lists; none where there is no such framework.

    Raises:
        UsageError: two have one name, or a package's cannot be loaded.
    """
    found: dict[str, type[Strategy]] = {}
    for strategy in sorted(_everywhere(), key=lambda strategy: (strategy.listed, strategy.name)):
        if strategy.framework == framework and found.setdefault(strategy.name, strategy) is not strategy:
            raise UsageError(
                f"there are two strategies '{strategy.name}', in {found[strategy.name].__module__} and in "
                f"{strategy.__module__}",
                "Uninstall the package of one of them.",
            )
    return found


def _everywhere() -> Iterator[type[Strategy]]:
    for framework in ("pytorch", "tensorflow"):
        package = importlib.import_module(f"gpudiag.training.strategies.{framework}")
        for file in pkgutil.iter_modules(package.__path__):
            yield importlib.import_module(f"{package.__name__}.{file.name}").STRATEGY
    yield from TENSORFLOW_1
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            yield entry.load()
        except Exception as error:
            raise UsageError(
                f"the strategy {entry.name} of {entry.value} cannot be loaded: {type(error).__name__}: {error}",
                "Mend that package, or uninstall it.",
            ) from error


def strategy_entry(name: str, framework: str = DEFAULT_FRAMEWORK) -> type[Strategy]:
    """The strategy of this name.

    Raises:
        UsageError: there is none; the hint lists those that there are.
    """
    known = strategies(framework)
    if name not in known:
        with_it = "" if framework == DEFAULT_FRAMEWORK else f" with --framework {framework}"
        raise UsageError(f"there is no strategy '{name}'{with_it}", there_are(name, known))
    return known[name]


def default_strategy(framework: str, *, on_gpu: bool) -> str:
    """Name of the strategy that is taken on such devices unless told otherwise."""
    device = "cuda" if on_gpu else "cpu"
    return next(name for name, strategy in strategies(framework).items() if strategy.default_on == device)


def check_communication(
    strategy: type[Strategy], options: CommunicationOptions, *, devices: int, nodes: int, precision: str | None
) -> None:
    """Refuse options that do not apply to a strategy, and what it cannot do; as `Strategy.check`, which see."""
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
    """Make the PyTorch strategy for this process.

    Args:
        name: as on the command line.
        device: the `torch.device` that this process trains on; the first where it drives several.
        options: how to exchange.
        devices: how many devices this process drives.
    """
    return pytorch_strategy(name)(device, options, devices)


def pytorch_strategy(name: str) -> type[PytorchStrategy]:
    """As `strategy_entry`, with what it does in a training process."""
    return cast("type[PytorchStrategy]", strategy_entry(name))


def tensorflow_strategy(name: str) -> type[TensorflowStrategy]:
    """As `strategy_entry`, with what it does in a training process."""
    return cast("type[TensorflowStrategy]", strategy_entry(name, "tensorflow"))


def transports_of(candidates: Iterable[Candidate], *, on_gpu: bool, p2p: bool) -> dict[str, Candidate]:
    """The transports over which candidates exchange, each with the first that does; in the candidates' order."""
    found: dict[str, Candidate] = {}
    for candidate in candidates:
        transport = strategy_entry(candidate.strategy).transport(candidate, on_gpu=on_gpu, p2p=p2p)
        if transport is not None:
            found.setdefault(transport, candidate)
    return found
