"""Options that several verbs share, so that they are spelt, bounded and described once, and what is made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gpudiag.errors import UsageError, there_are

if TYPE_CHECKING:
    from gpudiag.trace import ReadLimits

Value = TypeVar("Value")

MAX_TRACE_GB = 4.0
#: Narrower than this no table can be read; wider than this no line is.
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
    typer.Option(min=1, metavar="N", help="Ranks in the job, where neither the traces nor their names say."),
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
    bool, typer.Option("--all-ranks", help="Draw every rank; else of more than 8 those unlike the rest.")
]
Full = Annotated[bool, typer.Option("--full", help="Also show evidence, all advice, collectives, kernels and modules.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")]


def known_word(option: str, word: Value, words: tuple[Value, ...]) -> None:
    """Raises UsageError where an option is given a word that it does not know."""
    if word is not None and word not in words:
        raise UsageError(f"{option} knows no '{word}'", there_are(word, words))


def words_of(text: str | None) -> tuple[str, ...]:
    """The words of a list such as `a,b`."""
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def read_limits(max_trace_gb: float) -> ReadLimits:
    """The bounds on reading that `--max-trace-gb` asks for."""
    from gpudiag.trace import ReadLimits

    return ReadLimits(max_bytes=int(max_trace_gb * 1e9))
