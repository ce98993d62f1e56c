"""Run one command line, and convert every failure into an exit code, a message and a hint."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

from gpudiag.commands.command_line.parser import dispatch
from gpudiag.errors import GpudiagError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Exit code of a shell for a program that SIGINT ended.
INTERRUPTED = 130
#: Exit code of a shell for a program that SIGPIPE ended, because the reader of its output ended (`| head`).
READER_GONE = 141

DEBUG = "--debug"

#: Errors of the file system and its limits, which are no defects of gpudiag.
_FILE_SYSTEM_ERRORS = frozenset(
    {
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EIO,
        errno.ENAMETOOLONG,
    }
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    0: success. 1: a threshold of --fail-on was crossed. 2: wrong usage. 3: the requested hardware is missing. 4: the
    input is unreadable or no trace. 5: a worker or probe failed or timed out, or gpudiag itself failed. 130:
    interrupted. 141: the reader of the output ended.
    """
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    words, debug = _without_debug(words)
    sys.stdout = sys.stdout or _open_null()  # None if the shell closed the descriptor (`>&-`)
    sys.stderr = sys.stderr or _open_null()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors=_errors_of(stream))  # type: ignore[union-attr]  # a test's stream may lack it
    try:
        code = dispatch(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _silence(sys.stdout)
        return READER_GONE
    except GpudiagError as error:
        return _fail(error, debug=debug)
    except Exception as error:  # noqa: BLE001  # every unexpected error ends here
        return _fail(_as_gpudiag_error(error), debug=debug, cause=error)
    return code


def _errors_of(stream: TextIO) -> str:
    """Return the error handler for characters that a stream's encoding lacks, so that they cause no traceback."""
    if (stream.encoding or "").lower().startswith("utf"):
        return "replace"  # for lone surrogates, from file names that are not UTF-8
    from gpudiag.commands.command_line.ascii_signs import register_ascii_signs

    return register_ascii_signs()


def _open_null() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 # stays open until the process ends


def _without_debug(words: list[str]) -> tuple[list[str], bool]:
    """Return the words without `--debug`, and whether it was there. The user's own command after `--` is unchanged."""
    end = words.index("--") if "--" in words else len(words)
    remaining = [word for word in words[:end] if word != DEBUG]
    return [*(remaining or ["--help"]), *words[end:]], len(remaining) < end


def _as_gpudiag_error(error: Exception) -> GpudiagError:
    """Convert an unexpected error."""
    if isinstance(error, MemoryError):
        return GpudiagError("this machine ran out of memory", "Give fewer or shorter traces at once.")
    if isinstance(error, OSError) and error.errno in _FILE_SYSTEM_ERRORS:
        # No incomplete file remains: gpudiag writes each file under a temporary name, and renames the complete file.
        file = f"{error.filename}: " if error.filename is not None else ""
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            return GpudiagError(f"{file}{error.strerror}", "Raise the limit of open files: ulimit -n 1024.")
        return GpudiagError(f"{file}{error.strerror}", "Free some space there, or choose another directory.")
    return GpudiagError(f"unexpected {type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _fail(error: GpudiagError, *, debug: bool, cause: Exception | None = None) -> int:
    """Print the error, and return its exit code. With `debug`, print the traceback of the cause too."""
    from gpudiag.model.sanitize import one_line, printable

    if debug:
        import traceback

        _say(printable("".join(traceback.format_exception(cause or error)).rstrip("\n"), keep="\n"), prefix="")
    _say(one_line(str(error)))
    _say(f"hint: {one_line(error.hint)}", prefix="  ")
    return error.exit_code


def _say(line: str, *, prefix: str = "gpudiag: ") -> None:
    with contextlib.suppress(OSError, ValueError):  # the reader of standard error may have ended
        sys.stdout.flush()
        print(f"{prefix}{line}", file=sys.stderr, flush=True)  # noqa: T201  # every error message is printed here


def _silence(stream: Any) -> None:
    """Discard buffered output, so that the interpreter does not complain when it exits."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
