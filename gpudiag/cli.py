"""Parse, dispatch, and turn every failure into an exit code, one line of what is wrong and one of what to do."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from gpudiag import commands
from gpudiag.errors import GpudiagError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: As a shell reports a program that SIGINT ended.
INTERRUPTED = 130
#: As a shell reports a program that SIGPIPE ended: whoever read the output has left (`| head`).
READER_GONE = 141

DEBUG = "--debug"


class VerbGroup(TyperGroup):
    """The verbs, each imported only when it is called: help of one never pays for another."""

    def list_commands(self, _ctx: Any) -> list[str]:
        """The verbs that exist."""
        return list(commands.available())

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        """Import a verb's module and make its parser; None when there is no such verb."""
        if cmd_name not in commands.available():
            return None
        module = importlib.import_module(f"gpudiag.commands.{cmd_name}")
        parser = typer.Typer(add_completion=False, rich_markup_mode=None)
        parser.command(cmd_name, epilog=_examples(module.EXAMPLES))(getattr(module, cmd_name))
        return typer.main.get_command(parser)

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        """List the verbs, each with its line."""
        with formatter.section("Commands"):
            formatter.write_dl([(verb, commands.SUMMARIES[verb]) for verb in self.list_commands(_ctx)])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the verb, or say which there are."""
        if args and args[0] not in commands.available():
            raise UsageError(f"there is no command '{args[0]}'", _alternatives(args[0], commands.available()))
        return super().resolve_command(ctx, args)


def _examples(examples: Sequence[tuple[str, str]]) -> str:
    """Examples as an epilog that the help formatter leaves as it is (that is what its `\\b` asks for)."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}\n      {purpose}" for command, purpose in examples)


def _alternatives(word: str, valid: Sequence[str]) -> str:
    import difflib

    close = difflib.get_close_matches(word, valid, n=1)
    meant = f"Did you mean '{close[0]}'? " if close else ""
    return f"{meant}There are: {', '.join(valid)}."


app = typer.Typer(
    cls=VerbGroup,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from gpudiag import __version__

        typer.echo(f"gpudiag {__version__}")
        raise typer.Exit


@app.callback()
def gpudiag(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option(DEBUG, help="Show a traceback when something fails; may stand anywhere on the line.")
    ] = False,
) -> None:
    """Say why training on several GPUs is slower than it should be, what each cause costs, and what to change."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    0 done; 1 a threshold given with --fail-on was crossed; 2 usage; 3 the hardware asked for is not there; 4 input
    unreadable or not a trace; 5 a worker or probe failed or timed out, or gpudiag itself failed; 130 interrupted;
    141 the reader of the output left.
    """
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    words, debug = _without_debug(words)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets a question mark, not a traceback.
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a stream put there by a test may lack it
    try:
        code = _dispatch(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _silence(sys.stdout)
        return READER_GONE
    except GpudiagError as error:
        return _fail(error, debug=debug)
    except Exception as error:  # noqa: BLE001  # the one place where everything unexpected ends
        return _fail(_as_expected(error), debug=debug, cause=error)
    return code


def _without_debug(words: list[str]) -> tuple[list[str], bool]:
    """Take `--debug` out of the command line, but not out of a user's own command behind `--`."""
    end = words.index("--") if "--" in words else len(words)
    ours = [word for word in words[:end] if word != DEBUG]
    return [*(ours or ["--help"]), *words[end:]], len(ours) < end


def _dispatch(words: list[str]) -> int:
    """Parse and call. Not typer's own `main`: that one gives a broken pipe the exit code of a crossed threshold."""
    group = typer.main.get_command(app)
    try:
        with group.make_context("gpudiag", words) as context:
            group.invoke(context)
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    return 0


def _as_expected(error: Exception) -> GpudiagError:
    """Our own error for one of the parser's, or for one that nobody expected."""
    # typer has carried click's exceptions under changing private names; BadParameter's parent is their usage error.
    parser_error = typer.BadParameter.__mro__[1]
    if isinstance(error, parser_error):
        return _usage_error(error)
    if isinstance(error, MemoryError):
        return GpudiagError("this machine's memory was not enough", "Give fewer or shorter traces at once.")
    return GpudiagError(f"unexpected {type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _usage_error(error: Any) -> UsageError:
    context = error.ctx
    message = error.message if hasattr(error, "possibilities") else error.format_message()
    message = message[:1].lower() + message[1:].rstrip(".")
    if context is None:
        return UsageError(message)
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        options = [name for parameter in context.command.get_params(context) for name in parameter.opts]
        return UsageError(message, _alternatives(option, [name for name in options if name.startswith("--")]))
    return UsageError(message, f"See `{context.command_path} --help`.")


def _fail(error: GpudiagError, *, debug: bool, cause: Exception | None = None) -> int:
    from gpudiag.reporting.printable import one_line, printable

    if debug:
        import traceback

        _say(printable("".join(traceback.format_exception(cause or error)).rstrip("\n"), keep="\n"), prefix="")
    _say(one_line(str(error)))
    _say(f"hint: {one_line(error.hint)}", prefix="  ")
    return error.exit_code


def _say(line: str, *, prefix: str = "gpudiag: ") -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads standard error any more: nothing left to say
        sys.stdout.flush()
        print(f"{prefix}{line}", file=sys.stderr, flush=True)  # noqa: T201  # the error funnel's one way out


def _silence(stream: Any) -> None:
    """Send what is still buffered nowhere, so that the interpreter does not complain when it exits."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
