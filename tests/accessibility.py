"""Check pages with axe in a headless browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium and no google-chrome on the PATH")
#: Pairs of (colour scheme, width in CSS pixels): a desktop and a phone.
VIEWS = (("light", 1280), ("dark", 390))
#: Declare a mouse, as on a desktop. A headless browser has no mouse, and scripts of pages query for one.
_MOUSE = "primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4"
#: Milliseconds until the scripts of a page must have run.
_LOADED_MS = 60_000


@contextmanager
def browser() -> Iterator[Any]:
    """Start a headless browser, and yield Playwright's object for it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        options = ["--no-sandbox", "--disable-gpu", f"--blink-settings={_MOUSE}"]
        chromium = started.chromium.launch(executable_path=BROWSER, args=options)
        yield chromium
        chromium.close()


def violations(pages: Sequence[Path]) -> list[str]:
    """Return a line for each element of the pages that violates a rule of axe, on a desktop and on a phone."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed: make setup").Axe()
    lines: list[str] = []
    with browser() as chromium:
        for colors, width in VIEWS:
            context = chromium.new_context(color_scheme=colors, viewport={"width": width, "height": 900})
            context.set_default_timeout(_LOADED_MS)
            tab = context.new_page()
            for path in pages:
                tab.goto(path.resolve().as_uri())
                found = axe.run(tab).response["violations"]
                lines += [f"{path.name}, {colors}, {width} pixels: {line}" for line in _described(found)]
            context.close()
    return lines


def _described(found: list[dict[str, Any]]) -> Iterator[str]:
    """Describe each violating element: the rule, the location of the element, and axe's explanation."""
    for rule in found:
        for element in rule["nodes"]:
            why = " ".join(element.get("failureSummary", "").split())
            yield f"{rule['id']} at {' '.join(map(str, element['target']))}: {why}"
