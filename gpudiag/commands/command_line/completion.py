"""Complete values of options and arguments in a shell: workloads, strategies, codes, and words that a metavar lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

#: Metavar of an option that takes one or more of a few words, such as `torch|tensorflow`.
_WORDS = re.compile(r"[a-z][a-z0-9-]*([|,][a-z][a-z0-9-]*)+")


def complete_values(verb: Callable[..., Any]) -> None:
    """Add completions to the parameters of a command's function. Call this before typer makes its parser."""
    for name, hint in get_type_hints(verb, include_extras=True).items():
        for info in getattr(hint, "__metadata__", ()):
            if isinstance(info, OptionInfo | ArgumentInfo) and info.autocompletion is None:
                info.autocompletion = _completer(name, info.metavar or "")


def _completer(name: str, metavar: str) -> Callable[[typer.Context, str], list[str]] | None:
    """Return the completion function of a parameter; None if its values are unknown."""
    # `gpudiag diff --fail-on` takes `regression=5%` instead of codes.
    words = None if metavar.startswith("regression") else _WORDS_OF.get(name)
    if words is not None:
        return lambda ctx, incomplete: _matching(words(ctx), incomplete)
    if _WORDS.fullmatch(metavar):
        return lambda ctx, incomplete: _matching(re.split("[|,]", metavar), incomplete)  # noqa: ARG005 # typer calls it
    return None


def _matching(words: Iterable[str], incomplete: str) -> list[str]:
    """Return completions of the last word of a list such as `nccl,gl`."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{word}" for word in words if word.startswith(last)]


def _workloads(_ctx: typer.Context) -> Iterable[str]:
    from gpudiag.training.models.registry import WORKLOADS

    return WORKLOADS


def _strategies(ctx: typer.Context) -> Iterable[str]:
    from gpudiag.training.frameworks.registry import framework_option
    from gpudiag.training.strategies.registry import strategies

    return strategies(framework_option(ctx.params.get("framework") or "torch").name)


def _thresholds(_ctx: typer.Context) -> Iterable[str]:
    from gpudiag.commands.analyze import THRESHOLDS

    return THRESHOLDS


def _codes(_ctx: typer.Context) -> Iterable[str]:
    from gpudiag.model.analysis import FINDING_CODES, VALIDITY_CODES

    return (*FINDING_CODES, *VALIDITY_CODES)


def _causes(ctx: typer.Context) -> Iterable[str]:
    from gpudiag.app.explain import causes

    return causes(ctx.params.get("code") or "")


def _forms(_ctx: typer.Context) -> Iterable[str]:
    from gpudiag.model.benchmarks.tables import FORMS

    return (*FORMS, "all")


#: Functions that return the possible words of parameters whose metavar does not list them, by parameter name.
_WORDS_OF: dict[str, Callable[[typer.Context], Iterable[str]]] = {
    "workload": _workloads,
    "workloads": _workloads,
    "like": _workloads,
    "strategy": _strategies,
    "strategies": _strategies,
    "fail_on": _thresholds,
    "code": _codes,
    "cause": _causes,
    "form": _forms,
}
