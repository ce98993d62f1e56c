"""Define labels and fills of the eight buckets, which can be distinguished with and without color.

A bucket is a part of the step time, such as compute or copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpudiag.model.analysis import BUCKETS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from gpudiag.model.analysis import Severity

#: Bucket names as table headings.
LABELS = {bucket: bucket.removeprefix("communication_") for bucket in BUCKETS}
#: Colors by Okabe and Ito, which can be distinguished with any color vision (https://jfly.uni-koeln.de/color/).
_COLORS = dict(
    zip(BUCKETS, ("#009e73", "#0072b2", "#d55e00", "#f0e442", "#e69f00", "#cc79a7", "#56b4e9", "#808080"), strict=True)
)
#: Colors for terminals with 16 colors.
_FEW_COLORS = dict(
    zip(BUCKETS, ("green", "blue", "red", "cyan", "yellow", "magenta", "bright_cyan", "bright_black"), strict=True)
)
_GLYPHS = dict(zip(BUCKETS, "█▓░=ISL·", strict=True))
#: Character of each bucket if the output can show only ASCII.
ASCII_GLYPHS = dict(zip(BUCKETS, "#Tw=ISL.", strict=True))

SEVERITY_STYLE: Mapping[Severity, str] = {"critical": "bold red", "warning": "bold yellow", "info": "bold green"}


class Fill(msgspec.Struct, frozen=True, kw_only=True):
    """Character and style of a bucket in bars."""

    glyph: str
    style: str


def fills(console: Console) -> dict[str, Fill]:
    """Return a fill per bucket: colored blocks, or without color a different character for each bucket.

    A console with the attribute `distinct_glyphs` gets colors and different characters.
    """
    glyphs = _GLYPHS if console.encoding.lower().startswith("utf") else ASCII_GLYPHS
    if console.no_color or console.color_system is None:
        return {bucket: Fill(glyph=glyph, style="") for bucket, glyph in glyphs.items()}
    if console.color_system == "standard":
        return {bucket: Fill(glyph=glyph, style=_FEW_COLORS[bucket]) for bucket, glyph in glyphs.items()}
    distinct = getattr(console, "distinct_glyphs", False)
    return {
        bucket: Fill(glyph=glyphs[bucket if distinct else "compute"], style=color) for bucket, color in _COLORS.items()
    }
