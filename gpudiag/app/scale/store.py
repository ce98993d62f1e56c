"""Save points. The directory `points/<id>/` is a point's run directory, and contains its result, `point.json`.

Each point is written atomically as soon as it is measured, so that a second call can continue after any interruption. A
file that cannot be read is renamed, and its point is measured again.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from gpudiag.errors import GpudiagError, UnreadableInputError, UsageError
from gpudiag.model.benchmarks.scaling import (
    POINT_FILE,
    POINT_SCHEMA,
    SCALING_FILE,
    SCALING_SCHEMA,
    Machine,
    PointRecord,
    Scaling,
)
from gpudiag.model.benchmarks.sweep import OUTCOME_FILE, OUTCOME_SCHEMA, EntryOutcome
from gpudiag.model.run import INFERENCE_FILE, INFERENCE_SCHEMA, RUN_SCHEMA, InferenceRecord, RunRecord
from gpudiag.model.run_directory import (
    ANALYSIS_FILE,
    KERNEL_ONLY_TRACES,
    RUN_FILE,
    TRACES_DIR,
    below,
    read_json,
    readable_json,
    write_json,
)
from gpudiag.training.session.record import LOGS_DIR, RANKS_DIR

POINTS = "points"
PROFILE = "profile"


class Store:
    """The points of one output directory.

    Args:
        output: created if it does not exist.
        reading: create, rename and write nothing; omit points that cannot be read.
    """

    def __init__(self, output: Path, *, reading: bool = False) -> None:
        if output.exists() and not output.is_dir():
            raise UsageError(f"--output {output} is a file", "Give a directory; it is created if missing.")
        self.output = output
        #: A line about each point that could not be read.
        self.notes: list[str] = []
        self._reading = reading
        if not reading:
            with writing(output):
                below(output, POINTS).mkdir(parents=True, exist_ok=True)

    def directory(self, point_id: str, *, profile: bool = False, start: int = 1) -> Path:
        """Return the run directory of a point. Later starts and profiled steps have their own directories."""
        return below(self.output, self.relative(point_id, profile=profile, start=start))

    @staticmethod
    def relative(point_id: str, *, profile: bool = False, start: int = 1) -> str:
        """Return the path that `directory` returns, but relative to the output directory."""
        return f"{POINTS}/{point_id}" + (f"/{PROFILE}" if profile else f"/start-{start}" if start > 1 else "")

    def points(self) -> dict[str, PointRecord]:
        """Return all saved points, by id."""
        return {point.id: point for point in self._saved()}

    def _saved(self) -> Iterator[PointRecord]:
        """Yield the readable points. Rename each unreadable file, and add a note about it."""
        for path in sorted((self.output / POINTS).glob(f"*/{POINT_FILE}")):
            try:  # `below` raises if a link leads out of the output directory
                below(self.output, str(path.parent.relative_to(self.output)))
                point = read_json(path, PointRecord, POINT_SCHEMA)
            except UnreadableInputError as error:
                if self._reading or path.parent.is_symlink():
                    self.notes.append(f"{error}; left out")
                    continue
                aside = path.with_suffix(".json.old")
                with writing(self.output):
                    path.replace(aside)
                self.notes.append(f"{error}; kept as {aside.name}, the point is measured again")
                continue
            if point.id == path.parent.name:
                yield point
            else:  # the id would determine another directory for the point's files
                self.notes.append(f"{path}: belongs to point {point.id[:100]!r}, not to its directory; left out")

    def save(self, point: PointRecord) -> None:
        """Write one point."""
        directory = self.directory(point.id)
        with writing(self.output):
            directory.mkdir(parents=True, exist_ok=True)
            write_json(directory / POINT_FILE, point)

    def clear(self, point_id: str, *, profile: bool = False, start: int = 1) -> None:
        """Delete the results of an earlier attempt."""
        directory = self.directory(point_id, profile=profile, start=start)
        # The training writes into these directories; `below` refuses links that lead out of the point's directory.
        for name in (RANKS_DIR, LOGS_DIR, f"{TRACES_DIR}/{KERNEL_ONLY_TRACES}"):
            below(directory, name)
        with writing(self.output):
            for name in (OUTCOME_FILE, RUN_FILE, INFERENCE_FILE):
                (directory / name).unlink(missing_ok=True)

    def outcome(self, point_id: str, *, profile: bool = False, start: int = 1) -> EntryOutcome | None:
        """Return the outcome of the point's job; None if it never began."""
        directory = self.directory(point_id, profile=profile, start=start)
        return readable_json(directory / OUTCOME_FILE, EntryOutcome, OUTCOME_SCHEMA)

    def run(self, point_id: str, *, start: int = 1) -> RunRecord | None:
        """Return the run record of the point's job; None if it cannot be read."""
        return readable_json(self.directory(point_id, start=start) / RUN_FILE, RunRecord, RUN_SCHEMA)

    def volume(self, point_id: str, *, start: int = 1) -> InferenceRecord | None:
        """Return the inference record of the point's job; None if the job trains."""
        return readable_json(self.directory(point_id, start=start) / INFERENCE_FILE, InferenceRecord, INFERENCE_SCHEMA)

    def command(self, default: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command that measured the points: from the saved result, else from a point's record.

        The result is `default` if neither has the command.
        """
        result = readable_json(self.output / SCALING_FILE, Scaling, SCALING_SCHEMA)
        if result is not None:
            return result.command or default
        runs = (self.run(point_id) for point_id in self.points())
        return next((run.command for run in runs if run is not None and run.command), default)


def recorded_directory(output: Path, point_id: str) -> Path | None:
    """Return the run directory with a point's recorded steps; None if no steps were recorded."""
    for profile in (True, False):  # a point with a separate launch records steps in its own run directory
        try:
            directory = below(output, Store.relative(point_id, profile=profile))
        except UnreadableInputError:
            continue
        if (directory / RUN_FILE).is_file() and (
            (directory / TRACES_DIR).is_dir() or (directory / ANALYSIS_FILE).is_file()
        ):
            return directory
    return None


def check_machine(points: dict[str, PointRecord], machine: Machine, output: Path) -> None:
    """Raise UsageError if saved points were measured on a different machine or with different software."""
    for point in points.values():
        if point.status != "measured":
            continue
        differs = point.machine.differences(machine)
        if differs:
            raise UsageError(
                f"{output} has points measured with {differs[0]}",
                "Choose another --output; `gpudiag table` compares several.",
            )


@contextlib.contextmanager
def writing(output: Path) -> Iterator[None]:
    """Turn an OSError while writing results into a GpudiagError with a hint."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise GpudiagError(
                f"no space left for results in {output}",
                "Free some and repeat the command; measured points are kept.",
            ) from error
        raise GpudiagError(f"cannot write {output}: {error.strerror or error}", "Choose another --output.") from error
