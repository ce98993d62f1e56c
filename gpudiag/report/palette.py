"""How the eight buckets look: names short enough for a table, and fills that stay apart with or without colour."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from gpudiag.model.analysis import Severity

#: Buckets as a table's heading names them.
LABELS = {
    "compute": "compute",
    "communication_transfer": "transfer",
    "communication_wait": "wait",
    "copy": "copy",
    "input": "input",
    "sync": "sync",
    "launch": "launch",
    "idle": "idle",
}

#: The palette of Okabe and Ito, which people with any colour vision tell apart (https://jfly.uni-koeln.de/color/).
_COLOURS = {
    "compute": "#009e73",
    "communication_transfer": "#0072b2",
    "communication_wait": "#d55e00",
    "copy": "#f0e442",
    "input": "#e69f00",
    "sync": "#cc79a7",
    "launch": "#56b4e9",
    "idle": "#808080",
}
#: The same on a terminal of 16 colours, in the person's own theme.
_FEW_COLOURS = {
    "compute": "green",
    "communication_transfer": "blue",
    "communication_wait": "red",
    "copy": "cyan",
    "input": "yellow",
    "sync": "magenta",
    "launch": "bright_cyan",
    "idle": "bright_black",
}
_GLYPHS = {
    "compute": "█",
    "communication_transfer": "▓",
    "communication_wait": "░",
    "copy": "=",
    "input": "I",
    "sync": "S",
    "launch": "L",
    "idle": "·",
}
_ASCII_GLYPHS = _GLYPHS | {"compute": "#", "communication_transfer": "T", "communication_wait": "w", "idle": "."}

SEVERITY_STYLE: Mapping[Severity, str] = {"critical": "bold red", "warning": "bold yellow", "info": "bold green"}


class Fill(msgspec.Struct, frozen=True, kw_only=True):
    """What one bucket's part of a bar is drawn with."""

    glyph: str
    style: str


def fills(console: Console) -> dict[str, Fill]:
    """A fill for each bucket: solid blocks where colours tell them apart, else a character of its own for each."""
    glyphs = _GLYPHS if console.encoding.lower().startswith("utf") else _ASCII_GLYPHS
    if console.no_color or console.color_system is None:
        return {bucket: Fill(glyph=glyph, style="") for bucket, glyph in glyphs.items()}
    if console.color_system == "standard":
        return {bucket: Fill(glyph=glyph, style=_FEW_COLOURS[bucket]) for bucket, glyph in glyphs.items()}
    return {bucket: Fill(glyph=glyphs["compute"], style=colour) for bucket, colour in _COLOURS.items()}
