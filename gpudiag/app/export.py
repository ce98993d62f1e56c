"""`gpudiag export`: write the recording of a job in other tools' formats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.timeline import build_timeline
from gpudiag.errors import UsageError
from gpudiag.report.export.assemble import export_model_of
from gpudiag.report.export.formats import Format, format_named
from gpudiag.report.export.model import ExportModel
from gpudiag.report.export.tensorboard.log_directory import ScalarSeries, run_name, series_of
from gpudiag.trace import ReadLimits, read_traces
from gpudiag.trace.profiles import Profile, read_processes, read_profiles
from gpudiag.trace.recordings import check_one_recording


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """The recording of a job, its scalars per step, and the profile files of TensorFlow, if any."""

    export_model: ExportModel
    series: tuple[ScalarSeries, ...]
    profiles: tuple[Profile, ...] = ()


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """The written file, its format, and its number of events."""

    target: Path
    format: Format
    events: int


def export(
    paths: Sequence[str],
    format_name: str,
    output: Path | None = None,
    *,
    world_size: int | None = None,
    limits: ReadLimits | None = None,
) -> Exported:
    """Write the traces of one job in another tool's format.

    Args:
        paths, world_size, limits: as for `analyze`.
        format_name: name of the format on the command line.
        output: the file; `-` for standard output; None for a new file in the current directory, named after the run.
    """
    file_format = format_named(format_name)
    target = output or Path(f"{run_name(Path(paths[0]))}{file_format.ending}")
    if output is None and target.exists():
        raise UsageError(f"{target} exists already", "Name the file to write with -o.")
    recorded = read_recorded(paths, world_size=world_size, limits=limits)
    file_format.write(recorded.export_model, target)
    return Exported(target=target, format=file_format, events=recorded.export_model.events())


def read_recorded(
    paths: Sequence[Path | str], *, world_size: int | None = None, limits: ReadLimits | None = None
) -> Recorded:
    """Read the traces of one job to convert them. The arguments are those of `analyze`."""
    traces = read_traces(paths, world_size=world_size, limits=limits, repeated=True)
    check_one_recording(paths, traces)
    timeline = build_timeline(traces, world_size)
    attribution = attribute(timeline)
    recordings = timeline.traces
    profiles = read_profiles(paths, limits=limits)
    if profiles:  # TensorFlow: the timeline has a trace per GPU, but each process is exported as a whole
        recordings = tuple(process.trace for process in read_processes(paths, limits=limits))
    return Recorded(
        export_model=export_model_of(timeline, attribution, recordings),
        series=series_of(timeline, attribution),
        profiles=profiles,
    )
