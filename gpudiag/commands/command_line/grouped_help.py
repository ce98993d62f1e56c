"""Format the help of a command with many options: each way to call it in a line, and options under headings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from typer.core import TyperCommand

_OTHER = "Other options"


class GroupedCommand(TyperCommand):
    """A command whose help has several usage lines and groups of options. Subclasses set both.

    Attributes:
        usages: the words after the command's name, one entry per way to call the command, the main way first.
        groups: names of parameters in order, by heading. All other parameters follow under the heading `_OTHER`.
    """

    usages: ClassVar[Sequence[str]] = ()
    groups: ClassVar[Mapping[str, Sequence[str]]] = {}

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """Write the usage lines."""
        for number, usage in enumerate(self.usages):
            formatter.write_usage(ctx.command_path, usage, prefix="Usage: " if number == 0 else "       ")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write each group of options below its heading."""
        records = {parameter.name: parameter.get_help_record(ctx) for parameter in self.get_params(ctx)}
        named = {name for names in self.groups.values() for name in names}
        groups = {**self.groups, _OTHER: [name for name in records if name not in named]}
        for heading, names in groups.items():
            # A hidden parameter has no record.
            rows = [records[name] for name in names if records.get(name) is not None]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


def grouped_command(usages: Sequence[str], groups: Mapping[str, Sequence[str]]) -> type[GroupedCommand]:
    """Return a class of commands with these usage lines and groups."""
    return type("GroupedCommand", (GroupedCommand,), {"usages": usages, "groups": groups})
