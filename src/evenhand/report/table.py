"""Table: cells with their values and their text, in sections; formats.py writes it in any form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evenhand.core.metrics import Mean


@dataclass(frozen=True)
class Column:
    """A column; in a terminal it stands `below` another one, to save width."""

    name: str
    below: str = ""
    text: bool = False  # words, so flush left


def clean(text: str) -> str:
    """A text on one line; names come from data, so whatever steers a terminal is taken out."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


@dataclass(frozen=True)
class Cell:
    """What a machine reads and what a person reads; without a value, both are empty."""

    value: Any = None  # number, text, {"mean": …, "deviation": …, "seeds": …} or [low, high]
    text: str = ""
    best: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", clean(self.text))
        if isinstance(self.value, str):
            object.__setattr__(self, "value", clean(self.value))


EMPTY = Cell()
Row = list[Cell]


@dataclass(frozen=True)
class Section:
    """Rows that belong together, such as those of one task, with what must be said of them."""

    name: str
    rows: list[Row]
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", clean(self.name))
        object.__setattr__(self, "notes", [clean(note) for note in self.notes])


@dataclass(frozen=True)
class Table:
    """One table in one or more sections, all with the same columns."""

    name: str
    title: str
    columns: tuple[Column, ...]
    sections: list[Section]
    notes: list[str] = field(default_factory=list)

    def filled(self) -> list[int]:
        """The positions of the columns that have any content."""
        rows = [row for section in self.sections for row in section.rows]
        return [i for i in range(len(self.columns)) if not rows or any(row[i].text for row in rows)]

    def stacks(self) -> list[tuple[int, list[int]]]:
        """Where width counts: the columns that head a stack, each with those that stand below it."""
        kept = self.filled()
        names = {self.columns[i].name for i in kept}
        heads = [i for i in kept if self.columns[i].below not in names]
        return [(i, [j for j in kept if self.columns[j].below == self.columns[i].name]) for i in heads]

    def cell(self, section: str, row: str, column: str) -> Cell:
        """The cell of a row, which is named by its first cell."""
        position = [each.name for each in self.columns].index(column)
        rows = next(each.rows for each in self.sections if each.name == section)
        return next(cells[position] for cells in rows if cells[0].text == row)


def words(text: object) -> Cell:
    """Plain words."""
    return Cell(str(text), str(text)) if str(text) else EMPTY


def percents(mean: Mean | None, digits: int = 1) -> Cell:
    """A mean of fractions over seeds, as per cent."""
    return _mean(mean, 100, digits)


def ratio(mean: Mean | None, digits: int = 2) -> Cell:
    """A mean of ratios over seeds."""
    return _mean(mean, 1, digits)


def number(value: float | None, text: str = "{:g}") -> Cell:
    """One number, written by a format."""
    return EMPTY if value is None or not math.isfinite(value) else Cell(value, text.format(value))


def interval(bounds: tuple[float, float] | None) -> Cell:
    """A 95% interval of a fraction, as per cent."""
    if bounds is None:
        return EMPTY
    low, high = bounds
    return Cell([low, high], f"{100 * low:.1f} to {100 * high:.1f}")


def _mean(mean: Mean | None, unit: int, digits: int) -> Cell:
    if mean is None or not math.isfinite(mean.mean):
        return EMPTY
    value: dict[str, Any] = {"mean": mean.mean, "deviation": mean.deviation}
    if mean.per_seed:
        value["seeds"] = list(mean.per_seed)
    text = f"{unit * mean.mean:.{digits}f}"
    if len(mean.per_seed) != 1:  # the paper's come without their seeds
        text += f" ± {unit * mean.deviation:.{digits}f}"
    return Cell(value, text)


def mark_best(
    rows: Sequence[Row], column: int, *, lowest: bool = False, among: Callable[[Row], bool] | None = None
) -> None:
    """Mark the best cell of a column in place, and all that equal it as shown."""
    shown = [row for row in rows if row[column].text and (among is None or among(row))]
    if len(shown) < 2:
        return
    values = [_plain(row[column].value) for row in shown]
    target = min(values) if lowest else max(values)
    heads = [row[column].text.partition(" ±")[0] for row in shown]
    if len(set(heads)) == 1:
        return  # all are alike, so none is best
    for row, head in zip(shown, heads, strict=True):
        if head == heads[values.index(target)]:
            row[column] = replace(row[column], best=True)


def _plain(value: Any) -> float:
    return float(value["mean"] if isinstance(value, dict) else value)
