"""Parse the whole command line, and reword the parser's errors."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from gpudiag.commands import SUMMARIES, module_of
from gpudiag.errors import UsageError, there_are

if TYPE_CHECKING:
    from collections.abc import Sequence

#: click's UsageError, which is the parent of BadParameter. typer exposes it only under private names that change.
_PARSER_ERROR = cast("type[Exception]", typer.BadParameter.__mro__[1])
#: Environment variable that the shell's completion script sets. `--install-completion` installs this script.
COMPLETE = "_GPUDIAG_COMPLETE"
#: Key of a context's `meta` for the words after `--`.
AFTER_SEPARATOR = "gpudiag.after-separator"


class VerbGroup(TyperGroup):
    """The commands. A command is imported only when it is called, so that its help does not import other commands."""

    def list_commands(self, _ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return list(SUMMARIES)

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        """Import a command's module and make its parser; return None for an unknown command."""
        if cmd_name not in SUMMARIES:
            return None
        module = importlib.import_module(module_of(cmd_name))
        if COMPLETE in os.environ:
            from gpudiag.commands.command_line.completion import complete_values

            complete_values(getattr(module, cmd_name))
        parser = typer.Typer(add_completion=False, rich_markup_mode=None)
        parser.command(cmd_name, cls=_class_of(module), epilog=_examples(module.EXAMPLES))(getattr(module, cmd_name))
        return typer.main.get_command(parser)

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        """List the commands with their summaries."""
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command, and store the words after `--`, because the command's parser drops the separator."""
        if args[:1] == ["profile"]:
            args = ["profile", *_profile_words(self, ctx, args[1:])]
        if "--" in args:
            ctx.meta[AFTER_SEPARATOR] = args[args.index("--") + 1 :]
        if args and args[0] not in SUMMARIES:
            raise UsageError(f"there is no command '{args[0]}'", there_are(args[0], SUMMARIES))
        return super().resolve_command(ctx, args)


def _profile_words(group: VerbGroup, ctx: Any, words: list[str]) -> list[str]:
    """Insert a missing `--` before the user's own command, so that its options are not parsed as gpudiag's."""
    from gpudiag.commands.command_line.without_separator import with_separator
    from gpudiag.training.models.registry import WORKLOADS

    return with_separator(words, group.get_command(ctx, "profile").params, WORKLOADS)


def _class_of(module: Any) -> type[TyperCommand]:
    """Return the class of a command. If its module defines `USAGES` and `GROUPS`, the class has groups of options."""
    if not hasattr(module, "GROUPS"):
        return TyperCommand
    from gpudiag.commands.command_line.grouped_help import grouped_command

    return grouped_command(module.USAGES, module.GROUPS)


def _examples(examples: Sequence[tuple[str, str]]) -> str:
    """Format examples for the end of the help. The first line is `\\b`, so that the formatter keeps the line breaks."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}\n      {purpose}" for command, purpose in examples)


app = typer.Typer(
    cls=VerbGroup,
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
        bool, typer.Option("--debug", help="Show a traceback when something fails; anywhere on the line.")
    ] = False,
) -> None:
    """Say why training on several GPUs is slower than it should be, what each cause costs, and what to change."""


def dispatch(words: list[str]) -> int:
    """Parse the words, call the command, and return the exit code.

    typer's own `main` is not used, because its exit code for a broken pipe is the same as for a crossed threshold.

    Raises:
        UsageError: the words are no valid command line.
        KeyboardInterrupt: the command was interrupted.
    """
    group = typer.main.get_command(app)
    if COMPLETE in os.environ:
        group.main(words, prog_name="gpudiag")  # prints the completions and exits
    try:
        with group.make_context("gpudiag", words) as context:
            group.invoke(context)
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except _PARSER_ERROR as error:
        raise _usage_error(error) from error
    return 0


def _usage_error(error: Any) -> UsageError:
    """Convert click's UsageError. For an unknown option, whose error has `possibilities`, suggest similar options."""
    context = error.ctx
    # `message` lacks click's own suggestions, which `there_are` replaces.
    message = error.message if hasattr(error, "possibilities") else error.format_message()
    message = message[:1].lower() + message[1:].rstrip(".")
    if context is None:
        return UsageError(message)
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        options = [name for parameter in context.command.get_params(context) for name in parameter.opts]
        return UsageError(message, there_are(option, [name for name in options if name.startswith("--")]))
    return UsageError(message, f"See `{context.command_path} --help`.")
