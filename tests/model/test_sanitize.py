from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpudiag.model.sanitize import one_line, printable, sanitize_text, with_escapes


@given(st.text())
@example("\x1b]8;;http://evil\x07click\x1b]8;;\x07")
@example("\ud800")
def test_nothing_that_a_terminal_obeys_comes_through(text: str) -> None:
    assert not [c for c in printable(text) if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}]


@given(st.text(st.characters(categories=("L", "N", "P", "S", "Zs"))))
def test_visible_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


@given(st.text())
def test_one_line_is_one_line_and_stays_so(text: str) -> None:
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
def test_each_becomes_something_visible(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_line_breaks_of_a_traceback_may_stay() -> None:
    assert printable("a\n\x1bb", keep="\n") == "a\n␛b"


@given(st.text())
def test_sanitized_text_can_be_printed(text: str) -> None:
    out = sanitize_text(text)
    assert len(out) <= len(text)
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c in "\u2028\u2029\u202e\u200b" for c in out)
    assert sanitize_text(out) == out


def test_names_of_files_in_messages_keep_their_broken_bytes() -> None:
    assert with_escapes("a\udcffb") == r"a\udcffb"
