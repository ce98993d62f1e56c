"""Prefer the kernel-only traces of a run, with the operators of the full traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpudiag.errors import UnreadableInputError
from gpudiag.model.analysis import Validity
from gpudiag.model.event import DEVICE_WORK, Trace
from gpudiag.model.run_directory import find_kernel_only_traces
from gpudiag.trace import ReadLimits, read_traces
from gpudiag.trace.with_operators import with_operators


def least_disturbed(
    paths: Sequence[Path | str], full: tuple[Trace, ...], limits: ReadLimits | None = None
) -> tuple[tuple[Trace, ...], tuple[Validity, ...]]:
    """Return the kernel-only traces with the operators of the full ones, or the full ones if any cannot be used.

    On a CPU the operators are the work, and only full traces have them. All ranks use the same kind, because a
    collective of a kernel-only trace has no counterpart in a full trace.
    """
    directory = find_kernel_only_traces(paths)
    if directory is None or not all(len(trace.events.rows_of(*DEVICE_WORK)) for trace in full):
        return full, ()
    try:
        kernel_only = {trace.rank: trace for trace in read_traces([directory], limits=limits)}
    except UnreadableInputError as error:
        return full, (_unused(str(error)),)
    joined = [with_operators(kernel_only[trace.rank], trace) if trace.rank in kernel_only else None for trace in full]
    usable = tuple(trace for trace in joined if trace is not None)
    if len(usable) < len(full):
        return full, (_unused("its steps differ from those of the full trace"),)
    return usable, ()


def _unused(reason: str) -> Validity:
    return Validity(
        code="no-light-recording",
        message=f"the kernel-only trace cannot be used ({reason}); the full trace is analysed, whose recording slowed "
        "the host more. Record again.",
    )
