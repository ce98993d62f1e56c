"""Signs for terminals whose encoding lacks ours: an error handler that writes `x` for a multiplication sign."""

from __future__ import annotations

import codecs

#: The name under which streams ask for it.
ASCII_SIGNS = "gpudiag.ascii"
#: One character each, so that the columns of tables stay where they are.
_SIGNS = {
    "\N{MULTIPLICATION SIGN}": "x",
    "\N{MIDDLE DOT}": "-",
    "\N{EN DASH}": "-",
    "\N{EM DASH}": "-",
    "\N{MINUS SIGN}": "-",
    "\N{HORIZONTAL ELLIPSIS}": "~",
    "\N{RIGHTWARDS ARROW}": ">",
    "\N{LEFTWARDS ARROW}": "<",
    "\N{LEFT RIGHT ARROW}": "-",
    "\N{MICRO SIGN}": "u",
    "\N{GREEK SMALL LETTER MU}": "u",
    "\N{PLUS-MINUS SIGN}": "~",
    "\N{DEGREE SIGN}": " ",
    "\N{LATIN SMALL LETTER O WITH STROKE}": "o",
    "\N{GREATER-THAN OR EQUAL TO}": ">",
    "\N{LESS-THAN OR EQUAL TO}": "<",
    "\N{BULLET}": "*",
    "\N{FULL BLOCK}": "#",
    "\N{DARK SHADE}": "#",
    "\N{MEDIUM SHADE}": "+",
    "\N{LIGHT SHADE}": ".",
    "\N{BOX DRAWINGS LIGHT HORIZONTAL}": "-",
    "\N{BOX DRAWINGS LIGHT VERTICAL}": "|",
    "\N{BOX DRAWINGS DOUBLE HORIZONTAL}": "=",
}


def register_ascii_signs() -> str:
    """Make the error handler known to codecs, and return its name."""
    codecs.register_error(ASCII_SIGNS, _replace)
    return ASCII_SIGNS


def _replace(error: UnicodeError) -> tuple[str, int]:
    """Return what stands for the characters that cannot be encoded, and where encoding goes on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    shown = "".join(_SIGNS.get(sign, "?") for sign in error.object[error.start : error.end])
    return shown, error.end
