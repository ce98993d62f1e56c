"""Points on disk: `points/<id>/` is a point's run directory, and `point.json` in it its result.

Each point is written whole, by itself, as soon as it is known, so that a second call goes on where the first one ended,
however that was. What cannot be read is kept beside under another name and measured again.
"""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING

from gpudiag.errors import GpudiagError, UnreadableInputError, UsageError
from gpudiag.model.run import RUN_SCHEMA, RunRecord
from gpudiag.model.scaling import POINT_FILE, POINT_SCHEMA, ScalePoint
from gpudiag.model.sweep import OUTCOME_FILE, OUTCOME_SCHEMA, Outcome
from gpudiag.run_files import ANALYSIS_FILE, RUN_FILE, TRACES_DIR, read_json, write_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpudiag.model.scaling import Machine

POINTS = "points"
PROFILE = "profile"

#: Differences between machines that do not change what a step takes.
_HARMLESS = frozenset({"python"})


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

    def recorded(self, point_id: str) -> Path | None:
        """The run directory with a point's recorded steps; None where none were recorded."""
        return recorded(self.output, point_id)

    def points(self) -> dict[str, ScalePoint]:
        """All saved points, by id."""
        return {point.id: point for point in self._saved()}

    def _saved(self) -> Iterator[ScalePoint]:
        for path in sorted((self.output / POINTS).glob(f"*/{POINT_FILE}")):
            try:
                yield read_json(path, ScalePoint, POINT_SCHEMA)
            except UnreadableInputError as error:
                aside = path.with_suffix(".json.old")
                with writing(self.output):
                    path.replace(aside)
                self.notes.append(f"{error}; kept as {aside.name}, the point is measured again")

    def save(self, point: ScalePoint) -> None:
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
        path = self.directory(point_id, profile=profile) / OUTCOME_FILE
        with contextlib.suppress(UnreadableInputError):
            return read_json(path, Outcome, OUTCOME_SCHEMA)
        return None

    def run(self, point_id: str, *, profile: bool = False) -> RunRecord | None:
        """The record of the point's job, if there is a readable one."""
        path = self.directory(point_id, profile=profile) / RUN_FILE
        with contextlib.suppress(UnreadableInputError):
            return read_json(path, RunRecord, RUN_SCHEMA)
        return None


def recorded(output: Path, point_id: str) -> Path | None:
    """The same, by the output directory: a run of its own where the point shared its processes, else the point's."""
    for profile in (True, False):
        directory = output / Store.relative(point_id, profile=profile)
        if (directory / RUN_FILE).is_file() and (
            (directory / TRACES_DIR).is_dir() or (directory / ANALYSIS_FILE).is_file()
        ):
            return directory
    return None


def check_machine(points: dict[str, ScalePoint], machine: Machine, output: Path) -> None:
    """Refuse to put points of this machine beside those of another one or of other software.

    Raises:
        UsageError: saying what differs.
    """
    for point in points.values():
        if point.status != "measured":
            continue
        differs = differences(point.machine, machine)
        if differs:
            raise UsageError(
                f"{output} has points measured with {differs[0]}",
                "Choose another --output; `gpudiag table` puts several side by side.",
            )


def differences(one: Machine, other: Machine) -> list[str]:
    """What makes two machines' points incomparable, in words (`torch 2.11 and not 2.13`); unknown is no difference.

    Two machines of one kind are two machines: ResNet-50 took 18 ms on one GPU of one and 33 ms on one of another, whose
    host was busy. An efficiency made of points of both would be of neither.
    """
    found = []
    for what, a, b in (
        ("GPUs", one.gpus, other.gpus),
        ("host", one.host, other.host),
        ("CPU", one.cpu, other.cpu),
        ("the GPUs of machine", one.which, other.which),
    ):
        if a and b and a != b:
            words = [", ".join(value) if isinstance(value, tuple) else value for value in (a, b)]
            found.append(f"{what} {words[0]} and not {words[1]}")
    shared = sorted((one.software.keys() & other.software.keys()) - _HARMLESS)
    found += [
        f"{name} {one.software[name]} and not {other.software[name]}"
        for name in shared
        if one.software[name] != other.software[name]
    ]
    return found


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
