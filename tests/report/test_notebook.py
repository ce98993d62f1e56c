"""Test the report in a notebook's cell."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser

from gpudiag.model.analysis import Analysis, Source
from gpudiag.report.palette import fills
from gpudiag.report.terminal.notebook import NotebookConsole
from tests import builders
from tests.report.consoles import drawn


def html_of(analysis: Analysis) -> str:
    """Return the HTML that a notebook displays."""
    html: str = analysis._repr_html_()
    return html


def test_cell_shows_the_short_report() -> None:
    analysis = builders.late_loader()
    text = unescape(re.sub(r"<[^>]+>", "", html_of(analysis)))
    in_terminal = drawn(analysis, 100)
    assert text.partition("\nMore")[0].splitlines() == in_terminal.partition("\nMore")[0].splitlines()


def test_bars_differ_without_their_styles() -> None:
    html = html_of(builders.late_loader())
    assert "░░░" in html
    assert "color: #d55e00" in html
    glyphs = [fill.glyph for fill in fills(NotebookConsole(color_system="256")).values()]
    assert len(set(glyphs)) == len(glyphs)


def test_text_of_a_file_is_no_html() -> None:
    seen = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            seen.append(tag)

    Tags().feed(html_of(builders.hostile()))
    assert set(seen) == {"pre", "span"}
    assert "\x1b" not in html_of(builders.hostile())


def test_commands_have_the_paths_that_were_analysed() -> None:
    analysis = builders.analysis(builders.device(0, compute=1.0), source=Source(paths=("my run",)))
    assert "gpudiag analyze 'my run' --full" in unescape(html_of(analysis))
