"""Every way in which gpudiag can fail on purpose, each with its exit code and a remedy."""

from __future__ import annotations

from collections.abc import Iterable


class GpudiagError(Exception):
    """An expected failure: one line of what is wrong, one of what to do, and an exit code.

    Args:
        message: what is wrong, in one line, naming the file or option concerned.
        hint: what the person can do about it, in one line; the class's own hint when left out.
    """

    exit_code = 5
    hint = "Run again with --debug to see where it failed."

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint


class UsageError(GpudiagError):
    """The command line asks for something that does not exist or does not go together."""

    exit_code = 2
    hint = "See `gpudiag --help`."


class HardwareMissingError(GpudiagError):
    """The hardware that was asked for is not in this machine."""

    exit_code = 3
    hint = "Leave the option out to run on what the machine has, or see `gpudiag topology`."


class UnreadableInputError(GpudiagError):
    """A file is missing, broken, too large, or not what it should be."""

    exit_code = 4
    hint = "Record the trace again, and let the profiler finish writing before the job ends."


class NotATraceError(UnreadableInputError):
    """The file is whole, but it is no profiler trace."""

    hint = "Give a trace written by torch.profiler (export_chrome_trace or tensorboard_trace_handler)."


class TooLargeError(UnreadableInputError):
    """The file unpacks to more than the bound that protects this machine's memory."""

    hint = "If the file is trusted, raise the bound with --max-trace-gb; else record fewer steps."


class WorkerFailedError(GpudiagError):
    """A training process or a probe died, hung, or reported an error."""

    exit_code = 5
    hint = "The end of each worker's output is in the run directory, under logs/."


class FrameworkMissingError(GpudiagError):
    """The framework that the workload needs cannot be imported by the chosen interpreter."""

    exit_code = 5
    hint = "Install it (in a clone: pip install '.[torch]') or choose another interpreter with --python."


def there_are(word: object, known: Iterable[object]) -> str:
    """A hint for a word that nothing has: the one that was probably meant, and all that there are."""
    import difflib  # noqa: PLC0415  # for those only who mistype

    valid = [str(one) for one in known]
    close = difflib.get_close_matches(str(word), valid, n=1)
    meant = f"Did you mean '{close[0]}'? " if close else ""
    return f"{meant}There are: {', '.join(valid)}."
