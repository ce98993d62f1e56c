"""Declare the options that several commands share, and check their values."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gpudiag.errors import UsageError, there_are
from gpudiag.model.job import MEMORY_FORMATS, PRECISIONS

if TYPE_CHECKING:
    from gpudiag.trace import ReadLimits

Word = TypeVar("Word", bound=str)

MAX_TRACE_GB = 4.0
#: Smallest and largest accepted width of a report. Tables of fewer than 40 characters are unreadable.
NARROWEST, WIDEST = 40, 1000

Traces = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH",
        help="A run directory, trace files, a directory of traces, or patterns such as 'rank*.json.gz'.",
        show_default=False,
    ),
]
WorldSize = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Ranks in the job, if neither the traces nor their names say."),
]
MaxTraceGb = Annotated[
    float, typer.Option(min=0.001, metavar="GB", help="Refuse a trace that unpacks to more than this.")
]
Width = Annotated[
    int | None,
    typer.Option(
        min=NARROWEST,
        max=WIDEST,
        metavar="N",
        help="Report width (default: terminal width, else 100).",
    ),
]
AllRanks = Annotated[
    bool, typer.Option("--all-ranks", help="Draw every rank; by default, of more than 8, only those that differ.")
]
Full = Annotated[
    bool, typer.Option("--full", help="Also show evidence, all findings, advice, collectives, kernels and modules.")
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Read the traces on the workers of a Dask cluster: its scheduler's address, or local. "
        "Needs gpudiag[cluster].",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")]

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


def known_word(option: str, word: str | None, words: tuple[Word, ...]) -> Word | None:
    """Return the option's value as one of the known words; None if the option is not given.

    Raises:
        UsageError: the value is not one of the choices.
    """
    if word is None:
        return None
    for known in words:
        if word == known:
            return known
    raise UsageError(f"{option} knows no '{word}'", there_are(word, words))


def split_words(text: str | None) -> tuple[str, ...]:
    """Split a list such as `a,b`."""
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def read_limits(max_trace_gb: float) -> ReadLimits:
    """Return the limits on reading that `--max-trace-gb` sets."""
    from gpudiag.trace import ReadLimits

    return ReadLimits(max_bytes=int(max_trace_gb * 1e9))


def this_command() -> tuple[str, ...]:
    """Return the command line for the run's record."""
    return ("gpudiag", *sys.argv[1:])
