"""Format numbers as text: with three significant figures, with units, and as lists of ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

UNKNOWN = "—"
#: Times, sizes and counts from this value on are not plausible.
_IMPLAUSIBLE = 1e15
#: Smallest value that two decimals do not round to 0.
_SMALLEST = 0.005
EN_DASH = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"
MINUS = "\N{MINUS SIGN}"


def milliseconds(value: float | None, *, beside: float | None = None) -> str:
    """Return a time in ms without its unit: two decimals below 10, one decimal below 1000; `—` if missing.

    The number of decimals is that of `beside`, if it is given, so that the figures of a table have equal decimals.

    >>> milliseconds(0.042), milliseconds(26.14), milliseconds(12345.6), milliseconds(0.8, beside=57.1)
    ('0.04', '26.1', '12 346', '0.8')
    >>> milliseconds(0.0018), milliseconds(0.0)
    ('<0.01', '0.00')
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    magnitude = abs(value if beside is None or not math.isfinite(beside) else beside)
    if value > 0 and magnitude < _SMALLEST:
        return f"<{2 * _SMALLEST}"
    return thousands(value, 2 if magnitude < 10 else 1 if magnitude < 1000 else 0)


def span(values: Sequence[float]) -> str:
    """Return the range of times in ms, or one figure if all are equal.

    >>> span([3.04, 3.041]), span([3.0, 12.25]).split(EN_DASH)
    ('3.04', ['3.0', '12.2'])
    """
    low, high = (milliseconds(value, beside=max(values)) for value in (min(values), max(values)))
    return low if low == high else f"{low}{EN_DASH}{high}"


def thousands(value: float, decimals: int = 0) -> str:
    """Return a number with spaces between thousands (ISO 80000-1), or as a power of ten if implausible.

    >>> thousands(4483.2), thousands(1e30)
    ('4 483', '1e+30')
    """
    if abs(value) >= _IMPLAUSIBLE:
        return f"{value:.0e}"
    return f"{value:,.{decimals}f}".replace(",", " ")


def count(per_step: float) -> str:
    """Return calls per step, with a decimal only if the number is no integer."""
    return thousands(per_step, 1).removesuffix(".0")


def percent(part: float, whole: float) -> str:
    """Return `part` / `whole` in whole percent; `<1 %` for a smaller share, `—` for an unknown share.

    >>> percent(26.2, 57.1), percent(0.1, 57.1), percent(0, 57.1)
    ('46 %', '<1 %', '0 %')
    """
    if not (math.isfinite(part) and math.isfinite(whole)) or whole <= 0:
        return UNKNOWN
    share = 100 * part / whole
    return "<1 %" if 0 < share < 1 else f"{share:.0f} %"


def size(size_bytes: float | None) -> str:
    """Return bytes with three figures, in powers of 1000, as for bandwidths.

    >>> size(102_228_128), size(512), size(None)
    ('102 MB', '512 B', '—')
    """
    return _scaled(size_bytes, "B", ("", "k", "M", "G", "T"))


def flops(operations: float | None) -> str:
    """Return floating-point operations with three figures.

    >>> flops(1.23e13), flops(0), flops(None)
    ('12.3 TFLOP', '0 FLOP', '—')
    """
    return _scaled(operations, "FLOP", ("", "k", "M", "G", "T", "P"))


def _scaled(value: float | None, unit: str, prefixes: Sequence[str]) -> str:
    """Return a value with the first of `prefixes` (steps of 1000) that leaves at most three digits before the point."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for prefix in prefixes[:-1]:
        if abs(value) < 999.5:  # larger values are rounded to four digits
            return f"{_three_figures(value) if prefix else f'{value:.0f}'} {prefix}{unit}"
        value /= 1000
    return f"{_three_figures(value)} {prefixes[-1]}{unit}"


def rate(value: float | None) -> str:
    """Return a bandwidth with three figures, without its unit.

    >>> rate(294.61), rate(3.4), rate(0.001), rate(None)
    ('295', '3.40', '<0.01', '—')
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"<{2 * _SMALLEST}" if 0 < value < _SMALLEST else _three_figures(value)


def throughput(samples_per_s: float | None) -> str:
    """Return samples per second with three figures, however small.

    >>> throughput(4483.2), throughput(3.4), throughput(0.2113), throughput(0.00042), throughput(None)
    ('4 483', '3.40', '0.211', '0.00042', '—')
    """
    if samples_per_s is None or not math.isfinite(samples_per_s):
        return UNKNOWN
    return _three_figures(samples_per_s) if not 0 < samples_per_s < 1 else f"{samples_per_s:.3g}"


def _three_figures(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return thousands(value)
    return f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}"


def ranks(numbers: Iterable[int], *, capital: bool = False) -> str:
    """Return ranks in words, with ranges.

    >>> ranks([2]), ranks([0, 1, 3]), ranks([*range(8), 9], capital=True).replace(EN_DASH, "-")
    ('rank 2', 'ranks 0, 1 and 3', 'Ranks 0-7 and 9')
    """
    distinct = sorted(set(numbers))
    word = "Rank" if capital else "rank"
    if not distinct:
        return f"no {word.lower()}"
    *others, last = _spans(distinct)
    return f"{word}{'s' * (len(distinct) > 1)} {', '.join(others)}{' and ' * bool(others)}{last}"


def _spans(distinct: list[int]) -> Iterable[str]:
    """Yield each number as text, but three or more consecutive numbers as a range."""
    # Consecutive numbers have the same difference from their index.
    for _, group in groupby(enumerate(distinct), key=lambda item: item[1] - item[0]):
        run = [number for _, number in group]
        yield from [f"{run[0]}{EN_DASH}{run[-1]}"] if len(run) > 2 else map(str, run)
