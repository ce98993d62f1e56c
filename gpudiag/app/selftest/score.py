"""How many rows are right in which respect, beside the strict verdict, which wants all of it at once."""

from __future__ import annotations

from collections.abc import Iterable

from gpudiag.app.selftest.judge import off_ms
from gpudiag.model.benchmarks.selftest import Found, Score, SelftestRow
from gpudiag.statistics import wilson

#: Beside the share of the true cost: so many ms may always be missing.
_WITHIN = ((0.10, 1.0), (0.25, 2.0))


def scores_of(rows: Iterable[SelftestRow]) -> tuple[Score, ...]:
    """What is right, of the faults that are large enough to be found; and false alarms, of all rows."""
    rows = tuple(rows)
    faults = [
        row for row in rows if row.expected.code is not None and row.true.ms > max(row.alarm_ms, row.tolerance_ms)
    ]
    listed = [_listed(row) for row in faults]
    first = [row.found is not None and row.found.code in row.expected.codes for row in faults]
    named = [
        found is not None
        and found.ranks == row.expected.ranks
        and found.cause in (row.expected.causes_of(found.code) or (found.cause,))
        for row, found in zip(faults, listed, strict=True)
    ]
    scores = [
        _score("found", [found is not None for found in listed]),
        _score("code first", first),
        _score("ranks and cause right", named),
    ]
    for share, ms in _WITHIN:
        within = [
            found is not None and abs(off_ms(found, row.true, row.included_ms)) <= max(share * row.true.ms, ms)
            for row, found in zip(faults, listed, strict=True)
        ]
        scores.append(_score(f"amount within {100 * share:.0f} % or {ms:g} ms", within))
    return (*scores, _score("rows with a false alarm", [_alarmed(row) for row in rows]))


def _listed(row: SelftestRow) -> Found | None:
    """The finding of the fault, wherever it stands."""
    there = [] if row.found is None else [row.found, *row.others]
    return next((found for found in there if found.code in row.expected.codes), None)


def _alarmed(row: SelftestRow) -> bool:
    return any(found.code not in row.expected.codes for found in (row.found, *row.others) if found is not None)


def _score(name: str, right: list[bool]) -> Score:
    low, high = wilson(sum(right), len(right))
    return Score(name=name, right=sum(right), of=len(right), low=low, high=high)
