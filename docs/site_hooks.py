"""Adapt the pages to the site; mkdocs loads this module as a hook (see mkdocs.yml).

- Files outside of docs/ are not on the site, so that links to them become text. On GitHub the same links work.
- The search of pages opened from the file system needs a script, which the theme loads from another server. The copy in
  docs/assets takes its place.
- In the navigation `folder/` stands for all pages of a folder, and `*` for all pages that are not listed elsewhere.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
_BLOCK = re.compile(r"(```.*?```)", re.DOTALL)
_SEARCH = 'data-md-component="search" role="dialog"'
_SECTION = re.compile(
    r'(<nav class="md-nav" data-md-level="[1-9]") aria-labelledby="[^"]*"'
    r'(.*?<label class="md-nav__title"[^>]*>\s*<span[^>]*></span>\s*)([^<]*?)(\s*</label>)',
    re.DOTALL,
)
_CELL = '<div class="highlight-ipynb hl-python"'
_SHIM = "https://unpkg.com/iframe-worker/shim"
#: Pages that are not on the site.
_LEFT_OUT = {"package.md"}


def on_config(config: Any) -> Any:
    """Replace folders and `*` in the navigation by pages; for an offline site, remove features that need a server.

    The menu of versions and instant navigation need a server. With instant navigation, no script of the theme runs on a
    page that is opened from the file system.
    """
    docs = Path(config["docs_dir"])
    if config["plugins"]["material/offline"].config.enabled:
        config["extra"].pop("version", None)
        config["theme"]["features"] = [
            feature for feature in config["theme"]["features"] if feature != "navigation.instant"
        ]
    listed = set(_pages_of(config["nav"], docs))
    rest = sorted(page.relative_to(docs).as_posix() for ending in ("md", "ipynb") for page in docs.rglob(f"*.{ending}"))
    others = [page for page in rest if page not in listed | _LEFT_OUT]
    config["nav"] = [_expanded(entry, docs, others) for entry in config["nav"]]
    return config


def _pages_of(entry: Any, docs: Path) -> Iterator[str]:
    """Yield all pages of an entry of the navigation."""
    if isinstance(entry, str):
        yield from _folder(entry, docs) if entry.endswith("/") else [entry]
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from _pages_of(part, docs)


def _folder(name: str, docs: Path) -> list[str]:
    """Return the pages of a folder, with its index first."""
    pages = sorted((docs / name).glob("*.md"), key=lambda page: (page.name != "index.md", page.name))
    return [page.relative_to(docs).as_posix() for page in pages]


def _expanded(entry: Any, docs: Path, others: list[str]) -> Any:
    """Return an entry of the navigation with folders replaced by their pages, and `*` by `others`."""
    if isinstance(entry, dict):
        return {title: _expanded(part, docs, others) for title, part in entry.items()}
    if isinstance(entry, list):
        parts = [_expanded(part, docs, others) for part in entry]
        return [page for part in parts for page in (part if isinstance(part, list) else [part])]
    if entry == "*":
        return others
    return _folder(entry, docs) if entry.endswith("/") else entry


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page with links to files outside of docs/ replaced by their text."""
    folder = posixpath.dirname(page.file.src_uri)

    def adapted(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[2]))
        return match[1] if target.startswith("..") else match[0]

    parts = _BLOCK.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(adapted, part) for part in parts)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Return the page with the search script of this site instead of another server's, and with accessible names."""
    depth = page.url.count("/")
    return _accessible(output.replace(_SHIM, f"{'../' * depth}assets/iframe-worker.js"))


def on_post_template(output_content: str, template_name: str, **_: Any) -> str:
    """Return 404.html without the search script, which only pages opened from the file system need."""
    if template_name != "404.html":
        return output_content
    return _accessible(re.sub(rf'<script src="{re.escape(_SHIM)}"></script>', "", output_content))


def _accessible(output: str) -> str:
    """Return a page that screen readers can announce and whose scrolling parts keys can reach."""
    # The theme gives the search dialog no name.
    output = output.replace(_SEARCH, f'{_SEARCH} aria-label="Search"')
    # The sections of the menu are landmarks, which need names that differ.
    output = _SECTION.sub(r'\1 aria-label="\3"\2\3\4', output)
    # With the theme, keys can scroll code and tables, but not the cells of notebooks.
    return output.replace(_CELL, f'{_CELL} tabindex="0"')
