"""The expected failures of gpudiag, with exit codes and hints."""

from __future__ import annotations

from collections.abc import Iterable


class GpudiagError(Exception):
    """An expected failure. The command prints its message and its hint, and ends with `exit_code`.

    Args:
        message: one line that names the problem and the file or option.
        hint: one line that says what to do; None for the class's hint.
    """

    exit_code = 5
    hint = "Run again with --debug to see where it failed."

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint


class UsageError(GpudiagError):
    """The command line has an unknown word, or options that conflict."""

    exit_code = 2
    hint = "See `gpudiag --help`."


class HardwareMissingError(GpudiagError):
    """This machine lacks the requested hardware."""

    exit_code = 3
    hint = "Leave the option out to run on what the machine has, or see `gpudiag topology`."


class UnreadableInputError(GpudiagError):
    """A file is missing, damaged, too large, or not of the expected kind."""

    exit_code = 4
    hint = "Record the trace again, and let the profiler finish writing before the job ends."


class NotATraceError(UnreadableInputError):
    """The file is intact, but is not a profiler trace."""

    hint = "Give a trace written by torch.profiler (export_chrome_trace or tensorboard_trace_handler)."


class TooLargeError(UnreadableInputError):
    """The unpacked file exceeds the size limit that protects this machine's memory."""

    hint = "If the file is trusted, raise the limit with --max-trace-gb; else record fewer steps."


class WorkerFailedError(GpudiagError):
    """A training process or a probe died, hung, or reported an error."""

    exit_code = 5
    hint = "The end of each worker's output is in the run directory, under logs/."


class FrameworkMissingError(GpudiagError):
    """The framework that the workload needs cannot be imported by the chosen interpreter."""

    exit_code = 5
    hint = "Install it (in a clone: pip install '.[torch]') or choose another interpreter with --python."


class MissingLibraryError(GpudiagError):
    """A library that only this command needs is not installed."""

    exit_code = 2
    hint = "Install it, or leave the option out."


def there_are(word: object, known: Iterable[object]) -> str:
    """Return a hint for an unknown word: the closest known word, and the list of all known words."""
    import difflib  # noqa: PLC0415 # only needed after typing errors

    valid = [str(name) for name in known]
    close = difflib.get_close_matches(str(word), valid, n=1)
    suggestion = f"Did you mean '{close[0]}'? " if close else ""
    return f"{suggestion}There are: {', '.join(valid)}."
