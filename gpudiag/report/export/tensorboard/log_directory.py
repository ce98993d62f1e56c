"""A directory that TensorBoard opens: for each run its curves, its verdict as a text, and its profile.

<directory>/<run>/events.out.tfevents.gpudiag
<directory>/<run>/plugins/profile/<when>/<host>.xplane.pb
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from gpudiag.report.export.formats import xspace
from gpudiag.report.export.model import ExportModel
from gpudiag.report.export.tensorboard.scalars import Series, write_events

_PLAIN = re.compile(r"[^\w.+-]+")


def run_name(path: Path) -> str:
    """A name for a run that is safe as a directory, from its path."""
    return _PLAIN.sub("-", path.resolve().name).strip(".-") or "run"


def write_run(
    directory: Path,
    exported: ExportModel,
    series: tuple[Series, ...],
    verdict: str,
    profiles: Sequence[tuple[str, bytes]] = (),
) -> None:
    """Write what TensorBoard shows of one run.

    Args:
        directory: the run's own, not there yet.
        exported: everything that was recorded.
        series: its curves.
        verdict: its report in Markdown.
        profiles: TensorFlow's own files (host name, XSpace): these are shown as they are, a single one with gpudiag's
            tracks above its GPUs. Of PyTorch, none: the export model is converted.
    """
    when = exported.origin_ns / 1e9 or time.time()
    stamp = time.strftime("%Y_%m_%d_%H_%M_%S", time.localtime(when))
    recording = directory / "plugins" / "profile" / stamp
    recording.mkdir(parents=True)
    write_events(series, verdict, directory / "events.out.tfevents.gpudiag", when)
    if not profiles:
        xspace.FORMAT.write(exported, recording / "gpudiag.xplane.pb")
    elif len(profiles) == 1:
        (recording / _file(profiles[0][0])).write_bytes(xspace.with_gpudiag_tracks(profiles[0][1], exported))
    else:
        for name, data in profiles:
            (recording / _file(name)).write_bytes(data)


def _file(host: str) -> str:
    return f"{_PLAIN.sub('-', host).strip('.-') or 'host'}.xplane.pb"
