"""Encode answers as JSON of bounded size, with a list of what was cut."""

from __future__ import annotations

from typing import Any

import msgspec

from gpudiag.model.sanitize import escaped_json, without_surrogates

#: Numbers of entries to which lists and objects are cut, tried in this order until the answer fits.
_LENGTHS = (200, 100, 50, 25, 12, 6, 3, 1)
#: Objects keep at least this number of entries, so that a finding keeps its fields.
_FEWEST_FIELDS = 20
#: Maximum length of a text in characters.
_MOST_TEXT = 2000
#: Maximum number of notes on what was cut.
_MOST_NOTES = 12


def bounded_json(answer: dict[str, Any], most_characters: int) -> str:
    """Return an answer as JSON of at most `most_characters` characters.

    If the answer or one of its texts is too long, lists, objects and texts are cut. Then the field `cut` lists the
    first `_MOST_NOTES` cut values, each with its kept and its full length. If no cut suffices, only a note remains. NaN
    and infinity become null.
    """
    text = _encoded(answer)
    if len(text) <= most_characters and _longest_text(answer) <= _MOST_TEXT:
        return text
    for length in _LENGTHS:
        notes: list[dict[str, Any]] = []
        short = _cut(answer, length, "", notes)
        more = [{"and": f"{len(notes) - _MOST_NOTES} more places"}] if len(notes) > _MOST_NOTES else []
        text = _encoded({**short, "cut": [*notes[:_MOST_NOTES], *more]} if notes else short)
        if len(text) <= most_characters:
            return text
    return _encoded({"cut": [{"where": "everything", "why": f"longer than {most_characters} characters"}]})


def _encoded(answer: dict[str, Any]) -> str:
    try:
        data = msgspec.json.encode(answer)
    except UnicodeEncodeError:  # a path whose name is not UTF-8
        data = msgspec.json.encode(without_surrogates(answer))
    return escaped_json(data).decode()


def _longest_text(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return max(map(_longest_text, values), default=0)


def _cut(value: Any, length: int, where: str, notes: list[dict[str, Any]]) -> Any:
    """Return a copy whose lists have at most `length` entries, and add a note about each cut to `notes`.

    Objects below the first level have at most `length` or `_FEWEST_FIELDS` entries, whichever is more. `where` is the
    path of the value in the answer, such as `findings[].advice`; "" for the whole answer.
    """
    if isinstance(value, str) and len(value) > _MOST_TEXT:
        notes.append({"where": where, "kept": _MOST_TEXT, "of": len(value)})
        return value[:_MOST_TEXT]
    if isinstance(value, dict):
        kept = list(value.items())[: max(length, _FEWEST_FIELDS) if where else None]
        if len(kept) < len(value):
            notes.append({"where": where, "kept": len(kept), "of": len(value)})
        return {key: _cut(item, length, f"{where}.{key}" if where else str(key), notes) for key, item in kept}
    if isinstance(value, list | tuple):
        if len(value) > length:
            notes.append({"where": where, "kept": length, "of": len(value)})
        return [_cut(item, length, f"{where}[]", notes) for item in value[:length]]
    return value
