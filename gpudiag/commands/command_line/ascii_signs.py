"""Replace characters that a terminal's encoding lacks by similar ASCII characters (a multiplication sign by `x`)."""

from __future__ import annotations

import codecs

#: Name of the error handler.
ASCII_SIGNS = "gpudiag.ascii"
#: Replacements; each is one character, so that the columns of tables stay aligned.
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
    """Register the error handler with codecs, and return its name."""
    codecs.register_error(ASCII_SIGNS, _replace)
    return ASCII_SIGNS


def _replace(error: UnicodeError) -> tuple[str, int]:
    """Return the replacement of characters that cannot be encoded, and the position after them."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    replacement = "".join(_SIGNS.get(sign, "?") for sign in error.object[error.start : error.end])
    return replacement, error.end
