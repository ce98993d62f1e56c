"""Choose between the two recordings of a run: kernel-only traces and full traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpudiag.errors import UnreadableInputError
from gpudiag.model.analysis import Validity
from gpudiag.model.event import DEVICE_WORK, Trace
from gpudiag.model.run_directory import find_kernel_only_traces
from gpudiag.trace.read import read_traces
from gpudiag.trace.unpack import ReadLimits


def least_disturbed(
    paths: Sequence[Path | str], full: tuple[Trace, ...], limits: ReadLimits | None = None
) -> tuple[tuple[Trace, ...], tuple[Validity, ...]]:
    """Return the traces to analyse, and a warning if there are kernel-only traces that cannot be used.

    `full` has the full traces of `paths`; `limits` is as in `read_traces`. Kernel-only traces have lower profiler
    overhead, so they are returned, with the operators of the full traces added. The full traces are returned if there
    are no kernel-only traces, or if that of any rank is unusable: recordings cannot be mixed, because their collectives
    do not match. Full traces are also returned if the job ran on CPUs, because only full traces contain
    operators, the timed work.
    """
    directory = find_kernel_only_traces(paths)
    if directory is None or not all(len(trace.events.rows_of(*DEVICE_WORK)) for trace in full):
        return full, ()
    try:
        kernel_only = {trace.rank: trace for trace in read_traces([directory], limits=limits)}
    except UnreadableInputError as error:
        return full, (_unused(str(error)),)
    from gpudiag.trace.with_operators import with_operators  # only for runs with kernel-only traces

    joined = [
        with_operators(kernel_only[trace.rank], trace)
        if trace.rank in kernel_only
        else trace  # read from a digest, which already joins both recordings
        if trace.operators_merged
        else None
        for trace in full
    ]  # None if a rank has no kernel-only trace, or if its steps do not match
    usable = tuple(trace for trace in joined if trace is not None)
    if len(usable) < len(full):
        return full, (_unused("its steps do not match those of the full trace"),)
    return usable, ()


def _unused(reason: str) -> Validity:
    return Validity(
        code="no-light-recording",
        message=f"the kernel-only trace cannot be used ({reason}). The full trace is analysed, although recording it "
        "slowed the host more. Record again.",
    )
