"""Options that several verbs share, so that they are spelt, bounded and described once."""

from typing import Annotated

import typer

from gpudiag.commands import plain
from gpudiag.model.job import MEMORY_FORMATS, PRECISIONS

MAX_TRACE_GB = plain.MAX_TRACE_GB
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
        help="Columns of the report; when left out the terminal's, and 100 where there is none.",
    ),
]
AllRanks = Annotated[
    bool, typer.Option("--all-ranks", help="Draw every rank; else of more than 8 those unlike the rest.")
]
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
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")]
