"""Export reports of Nsight Systems (`.nsys-rep`) with the `nsys` of this machine."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpudiag.errors import UnreadableInputError
from gpudiag.model.sanitize import with_escapes
from gpudiag.trace.unpack import opened_file

#: Maximum duration of an export in seconds; exporting 3 GB takes minutes.
_TIMEOUT_S = 1800
_LONGEST_MESSAGE = 300


@contextmanager
def exported(path: Path, shown: str) -> Iterator[Path]:
    """Export a report to SQLite in a temporary directory, and yield the path of the export.

    Raises:
        UnreadableInputError: the file is missing, `nsys` is not installed, or the export failed.
    """
    with opened_file(path, shown):  # refuse an unreadable file before searching for nsys
        pass
    program = shutil.which("nsys")
    if program is None:
        raise UnreadableInputError(
            f"{shown} is a report of Nsight Systems, and nsys, which exports it, is not installed here",
            f"Where nsys is installed: nsys export --type sqlite {path.name}; then give the .sqlite.",
        )
    with tempfile.TemporaryDirectory(prefix="gpudiag-nsys-") as directory:
        target = Path(directory) / "report.sqlite"
        command = [program, "export", "--type", "sqlite", "--output", str(target), "--force-overwrite", "true"]
        try:
            done = subprocess.run(
                [*command, str(path.absolute())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _failed(shown, str(error)) from error
        if done.returncode != 0 or not target.exists():
            lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
            raise _failed(shown, lines[-1] if lines else f"exit code {done.returncode}")
        yield target


def _failed(shown: str, reason: str) -> UnreadableInputError:
    return UnreadableInputError(
        f"nsys could not export {shown}: {with_escapes(reason[:_LONGEST_MESSAGE])}",
        "Export it with the version of Nsight Systems that recorded it: nsys export --type sqlite FILE.nsys-rep",
    )
