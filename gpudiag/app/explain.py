"""`gpudiag explain`: read the documentation of findings and warnings from the pages in docs/findings."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

import msgspec

import gpudiag
from gpudiag.errors import GpudiagError, UsageError, there_are
from gpudiag.model.analysis import FINDING_CODES, VALIDITY_CODES
from gpudiag.model.explanation import CauseAdvice, Explanation, ExplanationList

_WARNINGS = "warnings"
_FIRES, _SILENT, _CANNOT_TELL, _ADVICE = "When it fires", "When it is silent", "When it cannot tell", "What it advises"
_CAUSE = re.compile(r"When the cause is \*(.+)\*:")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def explain(code: str, cause: str | None = None) -> Explanation:
    """Return the documentation of a finding or a warning; with `cause`, the advice for this cause only.

    For a cause without an example, all advice is returned with a note.

    Raises:
        UsageError: the code is unknown, its page has no causes, or the cause is a documented cause misspelt.
        GpudiagError: the pages are not installed.
    """
    code = code.partition(":")[0]  # `cannot-tell:straggler` is a `cannot-tell`
    if code in VALIDITY_CODES:
        explanation = _warning(code)
    elif code in FINDING_CODES:
        explanation = _finding(code)
    else:
        raise UsageError(f"there is no finding or warning '{code}'", there_are(code, (*FINDING_CODES, *VALIDITY_CODES)))
    if cause is None:
        return explanation
    chosen = tuple(entry for entry in explanation.advice if entry.cause == cause)
    if not chosen:
        known = causes(code)
        # Pages list only examples of causes. So an undocumented cause may be right, unless it is a misspelt one.
        if known and not get_close_matches(cause, known):
            note = f"No example has the cause '{cause}': this is the advice for the other causes."
            return msgspec.structs.replace(explanation, paragraphs=(*explanation.paragraphs, note))
        hint = there_are(cause, known) if known else f"Its page has no causes: gpudiag explain {code}."
        raise UsageError(f"the page of {code} has no cause '{cause}'", hint)
    return msgspec.structs.replace(explanation, advice=chosen)


def causes(code: str) -> list[str]:
    """Return the documented causes of a finding; none for an unknown code."""
    known = _finding(code).advice if code in FINDING_CODES else ()
    return [entry.cause for entry in known if entry.cause is not None]


def explanations() -> ExplanationList:
    """Return all codes with their title."""
    return ExplanationList(
        findings={code: _finding(code).title for code in FINDING_CODES},
        warnings={code: _warning(code).title for code in VALIDITY_CODES},
    )


def _pages() -> Path:
    """Return the folder of the pages: inside the installed package, else in the documentation of a checkout."""
    package = Path(gpudiag.__file__).resolve().parent
    for directory in (package / "_findings", package.parent / "docs" / "findings"):
        if (directory / f"{_WARNINGS}.md").is_file():
            return directory
    raise GpudiagError("the pages of findings are not installed", "Install gpudiag again; the wheel carries them.")


def _finding(code: str) -> Explanation:
    """Parse the page of a finding."""
    text = (_pages() / f"{code}.md").read_text(encoding="utf-8")
    # `sections` is heading, text, heading, text, …
    head, *sections = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    by_heading = dict(zip(sections[::2], sections[1::2], strict=True))
    title, *paragraphs = _paragraphs(head.partition("\n")[2])  # without the first line, which is the code
    return Explanation(
        code=code,
        kind="finding",
        title=title,
        paragraphs=tuple(paragraphs),
        fires=_items(by_heading.get(_FIRES, "")),
        silent=_items(by_heading.get(_SILENT, "")),
        cannot_tell=_items(by_heading.get(_CANNOT_TELL, "")),
        advice=_advice(by_heading.get(_ADVICE, "")),
    )


def _warning(code: str) -> Explanation:
    """Parse the row of a warning in the page of all warnings. The cells are codes (one or more), meaning, advice."""
    for line in (_pages() / f"{_WARNINGS}.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 3 and f"`{code}`" in cells[0]:
            title, *details = re.split("[:;] ", _plain(cells[1]), maxsplit=1)
            return Explanation(
                code=code,
                kind="warning",
                title=_sentence(title),
                paragraphs=tuple(map(_sentence, details)),
                advice=(CauseAdvice(advice=(_sentence(_plain(cells[2])),)),),
            )
    raise GpudiagError(f"the page of warnings lacks '{code}'", "Install gpudiag again; the wheel carries the page.")


def _advice(section: str) -> tuple[CauseAdvice, ...]:
    """Return the advice of a page by cause; one entry without cause if the section is not divided by causes."""
    introduction, *by_cause = _CAUSE.split(section)  # cause, text, cause, text, …
    if not by_cause:
        return (CauseAdvice(advice=_items(introduction)),)
    pairs = zip(by_cause[::2], by_cause[1::2], strict=True)
    return tuple(CauseAdvice(cause=cause, advice=_items(items)) for cause, items in pairs)


def _paragraphs(text: str) -> list[str]:
    return [_plain(" ".join(paragraph.split())) for paragraph in text.split("\n\n") if paragraph.strip()]


def _items(section: str) -> tuple[str, ...]:
    return tuple(_plain(line.removeprefix("- ")) for line in section.splitlines() if line.startswith("- "))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _plain(text: str) -> str:
    """Return text without Markdown's emphasis and links; code keeps its backticks."""
    parts = re.split(r"(`[^`]*`)", _LINK.sub(r"\1", text))
    return "".join(part if part.startswith("`") else re.sub(r"\*+(\S[^*]*)\*+", r"\1", part) for part in parts)
