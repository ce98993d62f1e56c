"""Points on disk: `points/<id>/` is a point's run directory, and `point.json` in it its result.

Each point is written whole, by itself, as soon as it is known, so that a second call goes on where the first one ended,
however that was. What cannot be read is kept beside under another name and measured again.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from gpudiag.errors import GpudiagError, UnreadableInputError, UsageError
from gpudiag.model.benchmarks.scaling import POINT_FILE, POINT_SCHEMA, Machine, PointRecord
from gpudiag.model.benchmarks.sweep import OUTCOME_FILE, OUTCOME_SCHEMA, Outcome
from gpudiag.model.run import RUN_SCHEMA, RunRecord
from gpudiag.model.run_directory import ANALYSIS_FILE, RUN_FILE, TRACES_DIR, read_json, readable_json, write_json

POINTS = "points"
PROFILE = "profile"


class Store:
    """The points of one output directory.

    Args:
        output: made if it is not there.

    Raises:
        UsageError: it is a file.
        GpudiagError: it cannot be made.
    """

    def __init__(self, output: Path) -> None:
        if output.exists() and not output.is_dir():
            raise UsageError(f"--output {output} is a file", "Give a directory; it is made if it is not there.")
        self.output = output
        #: What had to be put aside, one line each.
        self.notes: list[str] = []
        with writing(output):
            (output / POINTS).mkdir(parents=True, exist_ok=True)

    def directory(self, point_id: str, *, profile: bool = False) -> Path:
        """A point's run directory, or that of its profiled steps."""
        return self.output / self.relative(point_id, profile=profile)

    @staticmethod
    def relative(point_id: str, *, profile: bool = False) -> str:
        """The same, relative to the output directory."""
        return f"{POINTS}/{point_id}" + (f"/{PROFILE}" if profile else "")

    def points(self) -> dict[str, PointRecord]:
        """All saved points, by id."""
        return {point.id: point for point in self._saved()}

    def _saved(self) -> Iterator[PointRecord]:
        for path in sorted((self.output / POINTS).glob(f"*/{POINT_FILE}")):
            try:
                yield read_json(path, PointRecord, POINT_SCHEMA)
            except UnreadableInputError as error:
                aside = path.with_suffix(".json.old")
                with writing(self.output):
                    path.replace(aside)
                self.notes.append(f"{error}; kept as {aside.name}, the point is measured again")

    def save(self, point: PointRecord) -> None:
        """Write one point.

        Raises:
            GpudiagError: the disk is full, or the directory cannot be written.
        """
        directory = self.directory(point.id)
        with writing(self.output):
            directory.mkdir(parents=True, exist_ok=True)
            write_json(directory / POINT_FILE, point)

    def clear(self, point_id: str, *, profile: bool = False) -> None:
        """Forget what an earlier attempt left, so that it is not taken for this one's."""
        directory = self.directory(point_id, profile=profile)
        with writing(self.output):
            for name in (OUTCOME_FILE, RUN_FILE):
                (directory / name).unlink(missing_ok=True)

    def outcome(self, point_id: str, *, profile: bool = False) -> Outcome | None:
        """What became of the point's job; None when its turn never came."""
        return readable_json(self.directory(point_id, profile=profile) / OUTCOME_FILE, Outcome, OUTCOME_SCHEMA)

    def run(self, point_id: str) -> RunRecord | None:
        """The record of the point's job, if there is a readable one."""
        return readable_json(self.directory(point_id) / RUN_FILE, RunRecord, RUN_SCHEMA)


def recorded_directory(output: Path, point_id: str) -> Path | None:
    """The run directory with a point's recorded steps, one of its own where the point shared its processes; None if no
    steps were recorded."""
    for profile in (True, False):
        directory = output / Store.relative(point_id, profile=profile)
        if (directory / RUN_FILE).is_file() and (
            (directory / TRACES_DIR).is_dir() or (directory / ANALYSIS_FILE).is_file()
        ):
            return directory
    return None


def check_machine(points: dict[str, PointRecord], machine: Machine, output: Path) -> None:
    """Refuse to put points of this machine beside those of another one or of other software.

    Raises:
        UsageError: saying what differs.
    """
    for point in points.values():
        if point.status != "measured":
            continue
        differs = point.machine.differences(machine)
        if differs:
            raise UsageError(
                f"{output} has points measured with {differs[0]}",
                "Choose another --output; `gpudiag table` puts several side by side.",
            )


@contextlib.contextmanager
def writing(output: Path) -> Iterator[None]:
    """Turn what can go wrong while writing results into an error that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise GpudiagError(
                f"no space left for results in {output}",
                "Free some and give the same command again; points that were measured are kept.",
            ) from error
        raise GpudiagError(f"cannot write {output}: {error.strerror or error}", "Choose another --output.") from error
