"""Options of the verbs that train, and what is asked of a run by them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpudiag.commands.command_line.options import known_word
from gpudiag.model.job import (
    COMPRESSIONS,
    DATA_SOURCES,
    MEMORY_FORMATS,
    NCCL_ALGORITHMS,
    PRECISIONS,
    TRAINED_MODELS,
    CommunicationOptions,
    RunOptions,
)
from gpudiag.training.frameworks.registry import framework_option

if TYPE_CHECKING:
    from collections.abc import Mapping

Devices = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="GPUs (or CPU processes). Default: all GPUs, or 2.")
]
BatchSize = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Samples per device and step. Default: the workload's.")
]
OnePrecision = Annotated[
    str | None, typer.Option(metavar="|".join(PRECISIONS), help="Default: tf32 on GPUs, fp32 on CPUs.")
]
OneMemoryFormat = Annotated[
    str | None, typer.Option(metavar="|".join(MEMORY_FORMATS), help="Layout of images. Default: nchw.")
]
Python = Annotated[
    str | None, typer.Option(metavar="PATH", help="Interpreter of the training processes. Default: gpudiag's own.")
]
Timeout = Annotated[float, typer.Option(min=1, metavar="S", help="Give up after this long without progress.")]

#: Options that are one of a few words.
_WORDS: dict[str, tuple[str, ...]] = {
    "precision": PRECISIONS,
    "memory_format": MEMORY_FORMATS,
    "data": DATA_SOURCES,
    "model": TRAINED_MODELS,
    "compress": COMPRESSIONS,
    "nccl_algo": NCCL_ALGORITHMS,
}


def run_options(given: Mapping[str, Any], **named: Any) -> RunOptions:
    """The options of a run, from the parameters of a verb (its `locals()`) that are called as they are.

    Args:
        given: the parameters; others than options of a run are passed over.
        named: options of a run that the verb's parameters name or write otherwise; these come first.

    Raises:
        UsageError: a word that an option does not know.
    """
    for name, words in _WORDS.items():
        known_word(f"--{name.replace('_', '-')}", given.get(name), words)
    values = {name: given[name] for name in RunOptions.__struct_fields__ if name in given}
    exchange = {name: given[name] for name in CommunicationOptions.__struct_fields__ if name in given}
    values |= {
        "framework": framework_option(given.get("framework", "torch")).name,
        "exchange": CommunicationOptions(**exchange),
        "p2p": not given.get("no_p2p", False),
        "output": None if given.get("output") is None else str(given["output"]),
        "python": given.get("python") or sys.executable,
        "timeout_s": given["timeout"],
        "command": ("gpudiag", *sys.argv[1:]),
    }
    return RunOptions(**values | named)
