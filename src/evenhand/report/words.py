"""Words: numbers, lists and times as plain text."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percent(value: float, digits: int = 1) -> str:
    """Return a fraction as a percentage.

    >>> percent(0.6134), percent(1.0, 0)
    ('61.3%', '100%')
    """
    return f"{100 * value:.{digits}f}%"


def points(difference: float) -> str:
    """Return a difference of two fractions in percentage points, with its sign.

    >>> points(0.031), points(-0.2), points(0.0)
    ('+3.1 points', '−20.0 points', '±0.0 points')
    """
    rounded = round(100 * difference, 1)
    sign = "+" if rounded > 0 else "−" if rounded < 0 else "±"
    return f"{sign}{abs(rounded):.1f} points"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun.

    >>> count(1, "class", "classes"), count(1078, "sample")
    ('1 class', '1,078 samples')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(items: Sequence[str]) -> str:
    """Return items joined by commas and "and".

    >>> listed(["0"]), listed(["0", "1", "2"])
    ('0', '0, 1 and 2')
    """
    return "".join(items) if len(items) < 2 else f"{', '.join(items[:-1])} and {items[-1]}"


def duration(seconds: float | None) -> str:
    """Return a time in readable units.

    >>> duration(8.24), duration(754), duration(None)
    ('8.2 s', '12 min 34 s', '–')
    """
    if seconds is None:
        return "–"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def number(value: float) -> str:
    """Return a value with three significant digits.

    >>> number(0.012345), number(12.0), number(123456.0), number(float("nan"))
    ('0.0123', '12', '123,456', 'missing')
    """
    if not math.isfinite(value):
        return "missing"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
