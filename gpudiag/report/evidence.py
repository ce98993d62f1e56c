"""Describe the evidence of findings in words: `mean_wait_ms: 26.1` becomes "mean wait 26.1 ms"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.kernel_names import plain_names

MOST_ITEMS = 6
LONGEST_TEXT = 200

#: Parts of keys that name a unit, and the unit in words. `_ms_per_step` comes before its own part `_ms`.
_UNITS = (
    ("_ms_per_step", "ms per step"),
    ("_gb_per_s", "GB/s"),
    ("_per_step", "per step"),
    ("_percent", "%"),
    ("_ms", "ms"),
    ("_us", "µs"),
    ("_mhz", "MHz"),
    ("_watts", "W"),
    ("_c", "°C"),
)
#: Replacements for keys that could be mistaken for another figure of the report.
_NAMES = {
    "transfer_ms_per_step": "all_communication_overlapped_or_not_ms_per_step",
    "exposed_transfer_ms_by_rank": "recorded_transfer_not_overlapped_ms_by_rank",
}
_CONFIRMED = "confirmed_by_variations_percent"
#: Smallest time in ms that is not rounded to 0.00.
_SMALLEST_MS = 0.005
_BYTES = "_bytes"
_BY_RANK = "_by_rank"


def evidence_items(evidence: Mapping[str, Any]) -> list[str]:
    """Return each item in words, in order, without items that are zero. Nested tables are replaced by an ellipsis."""
    few = list(evidence.items())[: 3 * MOST_ITEMS]  # a hostile file may have more
    items = [(key, _without_zeros(key, value)) for key, value in few]
    return [_item(_NAMES.get(key, key), value) for key, value in items if not _is_zero(key, value)]


def _without_zeros(key: str, value: Any) -> Any:
    """Return a table without zeros. In a table of times by rank, negative times (of early ranks) are omitted too."""
    if not isinstance(value, dict):
        return value
    times_by_rank = key.endswith(_BY_RANK) and "_ms" in key
    return {
        label: item
        for label, item in value.items()
        if not (_is_zero(key, item) or (times_by_rank and isinstance(item, int | float) and item < 0))
    }


def _is_zero(key: str, value: Any) -> bool:
    """Return whether a figure is zero or a table is empty. Flags, unknown values and `_CONFIRMED` are never zero."""
    if isinstance(value, bool) or value is None or key == _CONFIRMED:
        return False
    if isinstance(value, int | float):
        return abs(value) < _SMALLEST_MS if "_ms" in key else value == 0
    return isinstance(value, dict) and not value


def _item(key: str, value: Any) -> str:
    """Return "mean wait 26.1 ms" for the key `mean_wait_ms`."""
    if key == _CONFIRMED and isinstance(value, int | float):
        return f"confirmed by {figures.percent(value, 100)} of the re-analyses"
    if isinstance(value, str):
        return f"{_words(key)}: {_value(value)}"
    if _BYTES in key and isinstance(value, int | float) and not isinstance(value, bool):
        return f"{_words(_without(key, _BYTES))} {figures.size(value)}"
    for words, unit in _UNITS:
        if f"{words}_" in f"{key}_":  # the unit as whole words: `_c` is not part of `_count`
            name = _without(key, words)
            return _table(name, value, unit) if isinstance(value, dict) else f"{_words(name)} {_value(value)} {unit}"
    return _table(key, value, "") if isinstance(value, dict) else f"{_words(key)} {_value(value)}"


def _table(key: str, table: dict[str, Any], unit: str) -> str:
    """Return "lateness: rank 0 1.14 ms, rank 1 0 ms" for `lateness_by_rank`."""
    per_rank = key.endswith(_BY_RANK)
    items = []
    for label, value in list(table.items())[:MOST_ITEMS]:
        name = plain_names(one_line(f"rank {label}" if per_rank else str(label)))[:LONGEST_TEXT]
        # A colon separates a name of several words from its figure.
        colon = ":" if " " in name and not per_rank else ""
        items.append(f"{name}{colon} {_value(value, nested=True)} {unit}".rstrip())
    more = f" and {len(table) - MOST_ITEMS} more" if len(table) > MOST_ITEMS else ""
    return f"{_words(key.removesuffix(_BY_RANK))}: {', '.join(items) or 'none'}{more}"


def _without(key: str, words: str) -> str:
    """Remove a unit from a key: `step_ms_now` without `_ms` is `step_now`."""
    return f"{key}_".replace(f"{words}_", "_", 1).removesuffix("_")


def _words(key: str) -> str:
    return one_line(key.replace("_", " "))[:LONGEST_TEXT]


def _value(value: Any, *, nested: bool = False) -> str:
    """Return a value in words. A table becomes an ellipsis, as does a `nested` list."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return figures.thousands(value) if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return figures.milliseconds(value).removesuffix(".00").removesuffix(".0")
    if isinstance(value, list | tuple | dict):
        return "…" if nested or isinstance(value, dict) else _listed(value)
    text = one_line(str(value))
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


def _listed(value: list[Any] | tuple[Any, ...]) -> str:
    items = [_value(item, nested=True) for item in value[:MOST_ITEMS]]
    more = f" and {len(value) - MOST_ITEMS} more" if len(value) > MOST_ITEMS else ""
    return (", ".join(items) or "none") + more
