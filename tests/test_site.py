"""Test the site that `make site` built: every kind of page with axe, and the search without a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.accessibility import browser, needs_browser, violations

SITE = Path(__file__).parents[1] / "build" / "site"
#: Pages besides the guides, one of each kind: text, terminal output, notebook, wide tables, drawings.
PAGES = (
    "index.html",
    "ten-minutes.html",
    "report.html",
    "tables.html",
    "commands/analyze.html",
    "examples/index.html",
    "findings/straggler.html",
    "results/h200x4.html",
)
pytestmark = [
    needs_browser,
    pytest.mark.apart,
    pytest.mark.processes,
    pytest.mark.skipif(not SITE.is_dir(), reason="the site is not built: make site"),
]


def test_pages_have_no_accessibility_violations() -> None:
    guides = sorted((SITE / "guides").glob("*.html"))
    assert len(guides) == 7
    found = violations([*guides, *(SITE / page for page in PAGES)])
    assert not found, "\n".join(found)


def test_search_finds_pages_from_the_file_system() -> None:
    with browser() as started:
        tab = started.new_page()
        tab.goto((SITE / "guides" / "index.html").as_uri())
        tab.keyboard.press("/")
        tab.keyboard.type("straggler")
        link = tab.locator("a.md-search-result__link[href*='findings/straggler']").first
        link.wait_for(timeout=60_000)
        link.click()
        tab.wait_for_url("**/findings/straggler.html*")
