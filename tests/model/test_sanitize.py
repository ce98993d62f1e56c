from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpudiag.model.sanitize import one_line, printable, sanitize_text, with_escapes


@given(st.text())
@example("\x1b]8;;http://evil\x07click\x1b]8;;\x07")
@example("\ud800")
def test_terminal_control_characters_are_removed(text: str) -> None:
    assert not [c for c in printable(text) if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}]


@given(st.text(st.characters(categories=("L", "N", "P", "S", "Zs"))))
def test_visible_text_is_unchanged(text: str) -> None:
    assert printable(text) == text


@given(st.text())
def test_reducing_text_to_one_line_is_idempotent(text: str) -> None:
    line = one_line(text)
    assert len(line.splitlines()) <= 1
    assert one_line(line) == line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "␛[31mred"),
        ("bell\x07", "bell␇"),
        ("\x7f", "␡"),
        ("\x9b31m", "<U+009B>31m"),
        ("abc\u202etxt.exe", "abc<U+202E>txt.exe"),
        ("two\r\nlines", "two␍␊lines"),
    ],
)
def test_each_harmful_character_becomes_visible(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_line_breaks_are_kept_on_request() -> None:
    assert printable("a\n\x1bb", keep="\n") == "a\n␛b"


@given(st.text())
def test_sanitized_text_can_be_printed(text: str) -> None:
    out = sanitize_text(text)
    assert len(out) <= len(text)
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c in "\u2028\u2029\u202e\u200b" for c in out)
    assert sanitize_text(out) == out


def test_file_names_in_messages_escape_broken_bytes() -> None:
    assert with_escapes("a\udcffb") == r"a\udcffb"
