"""Geometry of the page's charts: numbers in, path strings and tick positions out; templates draw them.

A chart's height is in pixels and its width is whatever the reader's screen gives, so x runs from 0 to
WIDTH in a stretched box, and ticks are placed in per cent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

WIDTH = 1000
MOST_POINTS = 120  # of one line: more cannot be told apart on a screen

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Series:
    """One line of a chart, (epochs,) each; NaN where there is no value."""

    label: str
    kind: str  # its colour: the name of a class in page.css
    values: Floats
    low: Floats | None = None  # of a band around the line
    high: Floats | None = None


@dataclass(frozen=True)
class Line:
    label: str
    kind: str
    path: str
    band: str


@dataclass(frozen=True)
class Chart:
    """What a template needs to draw a line chart, and what the page's script needs to read it out."""

    name: str  # identifier in the page
    title: str
    summary: str  # what a screen reader says
    height: int
    lines: tuple[Line, ...]
    x_ticks: tuple[tuple[float, str], ...]  # (per cent, label)
    y_ticks: tuple[tuple[float, str], ...]  # (pixels from the top, label)
    data: dict[str, Any]


def chart(
    name: str,
    title: str,
    epochs: npt.NDArray[np.int64],
    series: Sequence[Series],
    *,
    height: int = 200,
    share: bool = False,
) -> Chart:
    """A line chart over epochs, from zero up, or of shares between 0 and 1 from a round number up."""
    shown = thinned(len(epochs))
    epochs = epochs[shown]
    series = [_thin(each, shown) for each in series]
    low, high, ticks = _range(series, share)
    unit = 100 if share else 1

    def y(values: Floats) -> Floats:
        return height * (high - np.asarray(values, dtype=np.float64)) / (high - low)

    x = WIDTH * (epochs - epochs[0]) / max(1, int(epochs[-1] - epochs[0]))
    lines = tuple(Line(each.label, each.kind, _path(x, y(each.values)), _band(x, each, y)) for each in series)
    return Chart(
        name=name,
        title=title,
        summary=_summary(title, epochs, series, share),
        height=height,
        lines=lines,
        x_ticks=tuple(
            (round(100 * (tick - epochs[0]) / max(1, int(epochs[-1] - epochs[0])), 2), str(tick))
            for tick in _epoch_ticks(epochs)
        ),
        y_ticks=tuple((round(float(y(np.array(tick))), 1), _tick(tick, share)) for tick in ticks),
        data={
            "x": epochs.tolist(),
            "low": low,
            "high": high,
            "share": share,
            "series": [_rounded(each.values * unit if share else each.values) for each in series],
        },
    )


def thinned(num_epochs: int) -> npt.NDArray[np.int64]:
    """Which epochs a line is drawn through: all, or evenly picked ones with the first and the last."""
    return np.unique(np.linspace(0, num_epochs - 1, min(num_epochs, MOST_POINTS)).round().astype(np.int64))


def sparkline(values: Floats, highest: float, height: int = 24) -> str:
    """A path of WIDTH by `height` for a line without axes."""
    kept = values[thinned(len(values))]
    x = WIDTH * np.arange(len(kept)) / max(1, len(kept) - 1)
    return _path(x, height * (1 - kept / max(highest, 1e-12)))


def nice_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from `low` (itself round) to the first one that is not below `high`.

    >>> nice_ticks(0, 2.3)
    [0.0, 1.0, 2.0, 3.0]
    """
    span = max(high - low, 1e-9)
    power = 10.0 ** math.floor(math.log10(span / (most - 1)))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if span / (power * factor) <= most - 1 + 1e-9)
    return [round(low + step * i, 10) for i in range(math.ceil(span / step - 1e-9) + 1)]


def _range(series: Sequence[Series], share: bool) -> tuple[float, float, list[float]]:
    values = np.concatenate(
        [edge for each in series for edge in (each.values, each.low, each.high) if edge is not None]
    )
    values = values[np.isfinite(values)]
    if share:
        low = math.floor(10 * min(float(values.min(initial=1.0)), 0.9)) / 10
        return low, 1.0, [round(low + (1 - low) * i / 2, 3) for i in range(3)]
    ticks = nice_ticks(0.0, float(values.max(initial=0.0)) or 1.0)
    return 0.0, ticks[-1], ticks


def _tick(value: float, share: bool) -> str:
    return f"{100 * value:g}%" if share else f"{value:g}"


def _epoch_ticks(epochs: npt.NDArray[np.int64]) -> list[int]:
    """The first and the last epoch, and round ones between that stay clear of both."""
    first, last = int(epochs[0]), int(epochs[-1])
    if last - first < 6:
        return list(range(first, last + 1))
    step = next(s for s in (2, 5, 10, 20, 25, 50, 100, 200, 500, 10**9) if (last - first) / s <= 6)
    between = [e for e in range(step, last, step) if e - first > 0.07 * last and last - e > 0.07 * last]
    return [first, *between, last]


def _thin(series: Series, shown: npt.NDArray[np.int64]) -> Series:
    edges = [None if edge is None else edge[shown] for edge in (series.low, series.high)]
    return Series(series.label, series.kind, series.values[shown], *edges)


def _path(x: Floats, y: Floats) -> str:
    """Straight lines through the points that have a value."""
    kept = np.isfinite(y)
    points = [f"{a:.1f} {b:.1f}" for a, b in zip(x[kept], y[kept], strict=True)]
    if len(points) == 1:  # one epoch: a level line is visible, a point is not
        points.append(f"{WIDTH} {y[kept][0]:.1f}")
    return "M" + "L".join(points) if points else ""


def _band(x: Floats, series: Series, y: Callable[[Floats], Floats]) -> str:
    if series.low is None or series.high is None:
        return ""
    if len(x) == 1:
        x = np.array([0.0, WIDTH])
        low, high = np.repeat(y(series.low), 2), np.repeat(y(series.high), 2)
    else:
        low, high = y(series.low), y(series.high)
    there = [f"{a:.1f} {b:.1f}" for a, b in zip(x, high, strict=True)]
    back = [f"{a:.1f} {b:.1f}" for a, b in zip(x[::-1], low[::-1], strict=True)]
    return "M" + "L".join(there + back) + "Z"


def _summary(title: str, epochs: npt.NDArray[np.int64], series: Sequence[Series], share: bool) -> str:
    said = []
    for each in series:
        values = each.values[np.isfinite(each.values)]
        if len(values):
            start, end = (f"{100 * v:.1f}%" if share else f"{v:.2f}" for v in (values[0], values[-1]))
            said.append(f"{each.label}: from {start} to {end}")
    return f"{title}, epochs {epochs[0]} to {epochs[-1]}. {'; '.join(said)}."


def _rounded(values: Floats) -> list[float | None]:
    """For the page's script: JSON has no NaN."""
    return [round(float(value), 3) if math.isfinite(value) else None for value in values]
