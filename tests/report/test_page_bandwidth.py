"""Test the HTML page of bandwidth: it is one file that loads nothing and executes nothing from files."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from gpudiag.errors import GpudiagError
from gpudiag.model.facts import Facts, Host
from gpudiag.report.page.render import bandwidth_page, heat_bucket, write_page
from tests.report.test_facts_bandwidth import corrupt, hostile, measured

if TYPE_CHECKING:
    from pathlib import Path


class Page(HTMLParser):
    """Count elements, and keep the text and everything that could load or run something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.active: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag not in {"meta", "link", "br"}:
            self.open.append(tag)
        if tag in {"script", "link", "img", "iframe", "object"}:
            self.active.append(tag)
        self.active += [name for name, _ in attrs if name.startswith("on") or name in {"href", "src", "style"}]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


def test_page_has_every_figure_and_closes_every_element() -> None:
    page = Page(bandwidth_page(measured()))
    assert page.open == []
    assert page.active == []
    assert page.words.count("394") == 12
    assert "59 %" not in page.words
    assert page.count["td"] > 4 * 7 + 5 * 16


def test_nothing_from_a_file_becomes_markup() -> None:
    text = bandwidth_page(hostile())
    assert Page(text).active == []
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_corrupted_data_is_marked() -> None:
    text = bandwidth_page(corrupt())
    assert 'class="corrupt"' in text
    assert "data corrupted on 1 of" in text


def test_missing_measurements_are_reported_on_the_page() -> None:
    assert "nothing was measured" in bandwidth_page(Facts(host=Host()))


def test_page_has_light_and_dark_colours() -> None:
    assert "prefers-color-scheme: dark" in bandwidth_page(measured())


@pytest.mark.parametrize(("share", "bucket"), [(None, 0), (-1, 0), (0.04, 0), (0.5, 5), (0.96, 10), (7, 10)])
def test_heat_colours_follow_the_rate(share: float | None, bucket: int) -> None:
    assert heat_bucket(share) == bucket


def test_unwritable_path_is_an_expected_error(tmp_path: Path) -> None:
    with pytest.raises(GpudiagError, match="cannot write"):
        write_page(bandwidth_page(measured()), tmp_path / "nowhere" / "page.html")
