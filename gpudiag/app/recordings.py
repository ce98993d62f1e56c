"""Choose the recording to analyse: the kernel-only trace if there is one, with the operators of the full trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpudiag.errors import UnreadableInputError
from gpudiag.model.analysis import Validity
from gpudiag.model.event import DEVICE_WORK, Trace
from gpudiag.model.run_directory import find_kernel_only_traces
from gpudiag.trace import ReadLimits, read_traces


def least_disturbed(
    paths: Sequence[Path | str], full: tuple[Trace, ...], limits: ReadLimits | None = None
) -> tuple[tuple[Trace, ...], tuple[Validity, ...]]:
    """Return the kernel-only traces with the full traces' operators; the full traces if a kernel-only one is unusable.

    On a CPU the operators are the timed work, and only full traces have them. The kernel-only traces of all ranks are
    used, or those of none, because collectives of different recordings do not match.
    """
    directory = find_kernel_only_traces(paths)
    if directory is None or not all(len(trace.events.rows_of(*DEVICE_WORK)) for trace in full):
        return full, ()
    try:
        light = {trace.rank: trace for trace in read_traces([directory], limits=limits)}
    except UnreadableInputError as error:
        return full, (_unused(str(error)),)
    from gpudiag.trace.with_operators import with_operators  # noqa: PLC0415  # only for runs with kernel-only traces

    joined = [with_operators(light[trace.rank], trace) if trace.rank in light else None for trace in full]
    usable = tuple(trace for trace in joined if trace is not None)
    if len(usable) < len(full):
        return full, (_unused("its steps are not those of the full one"),)
    return usable, ()


def _unused(reason: str) -> Validity:
    return Validity(
        code="no-light-recording",
        message=f"the recording without operators cannot be used ({reason}): the one with them is analysed, which "
        "slowed the host more. Record again.",
    )
