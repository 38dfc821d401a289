"""Render: one table for a terminal, as Markdown, CSV, LaTeX, JSON or HTML.

A Table holds DataFrames of values: numbers, texts, `Mean`s over seeds, intervals, settings. Its columns
format them for people; machine-readable formats contain the values.
"""

from __future__ import annotations

import csv
import html as markup
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from evenhand.bench.grid import named
from evenhand.core.metrics import Mean

LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "×": r"$\times$",
    "–": "--", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "λ": r"$\lambda$",
    "Δ": r"$\Delta$", "−": r"$-$", "≤": r"$\leq$",
}  # fmt: skip
Row = Mapping[str, Any]  # column -> value; missing ones are empty


# -- formats of values -------------------------------------------------------------------------------------


def percents(value: Mean | float, digits: int = 1, unit: int = 100) -> str:
    """Return a fraction as per cent, or a mean of fractions over seeds with its deviation.

    >>> percents(0.125), percents(Mean(0.5, 0.02, (0.48, 0.52)))
    ('12.5', '50.0 ± 2.0')
    """
    if not isinstance(value, Mean):
        return f"{unit * value:.{digits}f}"
    spread = f" ± {unit * value.deviation:.{digits}f}" if len(value.per_seed) != 1 else ""
    return f"{unit * value.mean:.{digits}f}{spread}"  # the paper's means have no per-seed values


def spread(values: Sequence[float]) -> str:
    """Return the mean of fractions, with the deviation if there are several; a dash if there are none.

    >>> spread([0.5]), spread([0.5, 0.7]), spread([])
    ('50.0%', '60.0 ± 10.0%', '–')
    """
    if not len(values):
        return "–"
    return f"{percents(Mean(float(np.mean(values)), float(np.std(values)), tuple(values)))}%"


ratio = partial(percents, digits=2, unit=1)


def interval(bounds: tuple[float, float], form: str = ".1f") -> str:
    """Return an interval of fractions, as per cent."""
    return " to ".join(f"{100 * bound:{form}}" for bound in bounds)


def plain(value: Any) -> str:
    """Return a number or a text without further formatting."""
    return f"{value:g}" if isinstance(value, float) else str(value)


# -- tables ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column; terminals and pages show it `below` another one, on a line with its `label`."""

    name: str
    write: Callable[[Any], str] = plain
    below: str = ""
    label: str = ""
    words: bool = False  # flush left
    best: Literal["", "highest", "lowest"] = ""  # which value of a section is highlighted


class Cell(NamedTuple):
    """A value and its text; None and an empty text if the value is missing."""

    value: Any
    text: str
    best: bool = False


@dataclass(frozen=True, eq=False)
class Section:
    """Values that belong together, such as those of one task, with notes."""

    name: str
    rows: Sequence[Row] | pd.DataFrame
    notes: Sequence[str] = ()
    unranked: Sequence[str] = ()  # first cells of rows that are never highlighted as the best

    @property
    def frame(self) -> pd.DataFrame:
        """The values; integers stay integers beside missing values."""
        return pd.DataFrame(self.rows, dtype=object)


@dataclass(frozen=True, eq=False)
class Table:
    """A title, the formats of columns, and one or more sections of values with these columns."""

    name: str
    title: str
    columns: Sequence[Column]
    sections: Sequence[Section]
    notes: Sequence[str] = field(default_factory=list)

    @property
    def frame(self) -> pd.DataFrame:
        """All values, indexed by section and row."""
        return pd.concat({each.name: each.frame for each in self.sections}, names=["section", "row"])

    def cells(self, section: Section) -> list[list[Cell]]:
        """Return the section's cells, with the best of each column marked."""
        records = section.frame.to_dict("records")
        rows = [[_cell(row.get(column.name), column) for column in self.columns] for row in records]
        ranked = [row for row in rows if row[0].text not in section.unranked]
        for position, column in enumerate(self.columns):
            if column.best:
                _mark_best(ranked, position, max if column.best == "highest" else min)
        return rows

    def cell(self, section: str, row: str, column: str) -> Cell:
        """Return the cell of a column in the row with this first cell."""
        position = [each.name for each in self.columns].index(column)
        rows = next(self.cells(each) for each in self.sections if each.name == section)
        return next(cells[position] for cells in rows if cells[0].text == row)

    def stacks(self) -> list[tuple[int, list[int]]]:
        """Return the columns that head a stack, each with the columns below it. Empty columns are omitted."""
        rows = [row for section in self.sections for row in self.cells(section)]
        kept = [i for i in range(len(self.columns)) if not rows or any(row[i].text for row in rows)]
        names = {self.columns[i].name for i in kept}
        heads = [i for i in kept if self.columns[i].below not in names]
        return [(i, [j for j in kept if self.columns[j].below == self.columns[i].name]) for i in heads]

    def label(self, column: int) -> str:
        """Return the label of a column below another: "paper" for "WGA, paper"."""
        own = self.columns[column]
        return own.label or own.name.removeprefix(f"{own.below}, ")


def _cell(value: Any, column: Column) -> Cell:
    number = value.mean if isinstance(value, Mean) else value
    if (
        value is None
        or value == ""
        or value == {}
        or (isinstance(number, float) and not math.isfinite(number))
    ):
        return Cell(None, "")
    return Cell(_machine(value), clean(column.write(value)))


def _machine(value: Any) -> Any:
    """Return a value as plain data."""
    if isinstance(value, Mean):
        seeds = {"seeds": list(value.per_seed)} if value.per_seed else {}
        return {"mean": value.mean, "deviation": value.deviation, **seeds}
    if isinstance(value, Mapping):
        return clean(named(value))
    if isinstance(value, tuple):
        return list(value)
    return clean(value) if isinstance(value, str) else value


def clean(text: str) -> str:
    """Return a text on one line, without control characters, since names come from data."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _mark_best(rows: Sequence[list[Cell]], column: int, best: Callable[[list[float]], float]) -> None:
    """Mark the best cell of a column in place, and all cells with the same displayed value."""
    shown = [row for row in rows if row[column].text]
    values = [row[column].value for row in shown]
    numbers = [float(value["mean"] if isinstance(value, dict) else value) for value in values]
    heads = [row[column].text.partition(" ±")[0] for row in shown]
    if len(set(heads)) > 1:  # with equal values none is best
        target = heads[numbers.index(best(numbers))]
        for row, head in zip(shown, heads, strict=True):
            row[column] = row[column]._replace(best=head == target)


# -- output formats ----------------------------------------------------------------------------------------


def markdown(table: Table) -> str:
    """Return tables under headings, with the best values in bold and notes below."""
    kept = _kept(table)
    columns = [table.columns[i] for i in kept]
    lines = [f"# {_md(table.title)}", ""]
    for section in table.sections:
        lines += [f"## {_md(section.name)}", ""] if section.name else []
        lines.append(_line(_md(column.name) for column in columns))
        lines.append(_line(":--" if column.words else "--:" for column in columns))
        for row in table.cells(section):
            cells = (row[i] for i in kept)
            lines.append(_line(f"**{_md(cell.text)}**" if cell.best else _md(cell.text) for cell in cells))
        lines += ["", *(f"- {_md(note)}" for note in section.notes), *([""] if section.notes else [])]
    lines += [_md(note) for note in table.notes]
    return "\n".join(lines).rstrip() + "\n"


def comma_separated(table: Table) -> str:
    """Return one header and plain numbers. A mean and its deviation, or an interval, take two columns."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    sections = [(section, table.cells(section)) for section in table.sections]
    parts = [
        _parts([row[i].value for _, rows in sections for row in rows]) for i in range(len(table.columns))
    ]
    header = [column.name + end for column, ends in zip(table.columns, parts, strict=True) for end, _ in ends]
    writer.writerow(["section", *header])
    for section, rows in sections:
        for row in rows:
            values = [take(cell.value) for cell, ends in zip(row, parts, strict=True) for _, take in ends]
            writer.writerow([_safe(clean(section.name)), *map(_safe, values)])
    return buffer.getvalue()


def latex(table: Table) -> str:
    """Return one booktabs tabular per section, with the best values in bold and notes as comments."""
    kept = _kept(table)
    columns = [table.columns[i] for i in kept]
    lines = [f"% {_comment(table.title)}; needs \\usepackage{{booktabs}}"]
    for section in table.sections:
        lines.append(f"% {_comment(section.name)}" if section.name else "%")
        lines.append(rf"\begin{{tabular}}{{{''.join('l' if each.words else 'r' for each in columns)}}}")
        lines += [r"\toprule", " & ".join(_tex(each.name) for each in columns) + r" \\", r"\midrule"]
        for row in table.cells(section):
            cells = (row[i] for i in kept)
            texts = [rf"\textbf{{{_tex(cell.text)}}}" if cell.best else _tex(cell.text) for cell in cells]
            lines.append(" & ".join(texts) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}", *(f"% {_comment(note)}" for note in section.notes)]
    lines += [f"% {_comment(note)}" for note in table.notes]
    return "\n".join(lines) + "\n"


def as_json(table: Table) -> str:
    """Return all values, also per seed, with fractions in [0, 1]; the best columns of each row; notes."""
    names = [column.name for column in table.columns]
    sections = [
        {
            "name": clean(section.name),
            "rows": [
                {
                    **{name: cell.value for name, cell in zip(names, row, strict=True)},
                    "best": [name for name, cell in zip(names, row, strict=True) if cell.best],
                }
                for row in table.cells(section)
            ],
            "notes": [clean(note) for note in section.notes],
        }
        for section in table.sections
    ]
    content = {"table": table.name, "title": table.title, "sections": sections, "notes": list(table.notes)}
    return json.dumps(content, indent=1, ensure_ascii=False, default=lambda value: value.item()) + "\n"


def html(table: Table) -> str:
    """Return one table element per section, with notes below."""
    parts = [f"<h1>{markup.escape(table.title)}</h1>"]
    for section in table.sections:
        parts += [f"<h2>{markup.escape(clean(section.name))}</h2>"] if section.name else []
        parts += [html_section(table, section), *map(_html_note, section.notes)]
    return "\n".join([*parts, *map(_html_note, table.notes)]) + "\n"


def html_section(table: Table, section: Section) -> str:
    """Return the table element of one section. All content is escaped."""
    stacks = table.stacks()
    lines = ['<table class="results">', "<thead><tr>"]
    lines += [
        f'<th scope="col"{_html_class(table.columns[head])}>{markup.escape(table.columns[head].name)}</th>'
        for head, _ in stacks
    ]
    lines.append("</tr></thead><tbody>")
    for row in table.cells(section):
        lines.append("<tr>")
        for position, (head, under) in enumerate(stacks):
            text = markup.escape(row[head].text)
            below = "".join(
                f'<small class="under"><span>{markup.escape(table.label(j))}</span> '
                f"{markup.escape(row[j].text)}</small>"
                for j in under
                if row[j].text
            )
            tag = "td" if position else 'th scope="row"'
            inside = f"<strong>{text}</strong>" if row[head].best else text
            lines.append(f"<{tag}{_html_class(table.columns[head])}>{inside}{below}</{tag[:2]}>")
        lines.append("</tr>")
    return "\n".join([*lines, "</tbody></table>"])


def terminal(table: Table, width: int) -> Iterator[Any]:
    """Yield renderables for rich that break no word. Columns below another are lines with labels.

    If the longest words of all columns do not fit side by side, each row becomes a list of names and values.
    """
    from rich.text import Text

    for section in table.sections:
        if title := " · ".join(part for part in (table.title, clean(section.name)) if part):
            yield Text(title, style="bold")
        yield _grid(table, section, width)
        yield from (Text(f"  {clean(note)}", style="dim") for note in section.notes)
    yield from (Text(clean(note), style="dim") for note in table.notes)


def _grid(table: Table, section: Section, width: int) -> Any:
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    stacks, cells = table.stacks(), table.cells(section)
    heads = [table.columns[head] for head, _ in stacks]
    lines: list[tuple[list[str], list[str]]] = []  # texts and styles
    for row in cells:
        lines.append(([row[i].text for i, _ in stacks], ["bold" if row[i].best else "" for i, _ in stacks]))
        labels = dict.fromkeys(table.label(j) for _, under in stacks for j in under if row[j].text)
        for label in labels:
            own = [[row[j].text for j in under if table.label(j) == label] for _, under in stacks]
            first = [f"  {(own[0] or [label])[0]}"]  # values below the first column need no label
            lines.append(([text[0] if text else "" for text in (first, *own[1:])], ["dim"] * len(stacks)))
    texts = [[line[i] for line, _ in lines] for i in range(len(heads))]
    widths = fitted(heads, texts, width - 3 * len(heads) - 1)
    if widths is None:
        return _listing(table, stacks, cells)
    grid = Grid(box=box.SIMPLE_HEAD)
    for column, size in zip(heads, widths, strict=True):
        grid.add_column(Text(column.name), justify="left" if column.words else "right", width=size)
    for line, styles in lines:
        grid.add_row(*(Text(text, style=style) for text, style in zip(line, styles, strict=True)))
    return grid


def fitted(columns: Sequence[Column], texts: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Return a width for every column, at least that of its longest word or number; None if they do not fit.

    Remaining room goes to texts first, then to column names.

    >>> columns = [Column("name", words=True), Column("score")]
    >>> [fitted(columns, [["two words"], ["1 ± 0"]], width) for width in (9, 10, 99)]
    [None, [5, 5], [9, 5]]
    """
    widths, cells, names = [], [], [len(column.name) for column in columns]
    for column, own in zip(columns, texts, strict=True):
        unbroken = " ".join(own).split() if column.words else own
        widths.append(max(map(len, [*column.name.split(), *unbroken])))
        cells.append(max(map(len, own), default=0))
    room = width - sum(widths)
    for wanted in (cells, names):
        while room > 0 and (short := [i for i, size in enumerate(widths) if size < wanted[i]]):
            for i in short[:room]:
                widths[i] += 1
            room -= min(room, len(short))
    return None if room < 0 else widths


def _listing(table: Table, stacks: Sequence[tuple[int, list[int]]], cells: list[list[Cell]]) -> Any:
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    parts: list[Any] = []
    for row in cells:
        parts.append(Text(row[0].text, style="bold"))
        for i in [each for head, under in stacks for each in (head, *under)][1:]:
            if row[i].text:
                name = Text(f"{table.columns[i].name}: ", style="dim")
                parts.append(Padding(name.append(row[i].text, style="not dim"), (0, 0, 0, 2)))
    return Group(*parts, Text())


FORMATS: dict[str, Callable[[Table], str]] = {
    "md": markdown,
    "csv": comma_separated,
    "latex": latex,
    "json": as_json,
    "html": html,
}


def write(table: Table, form: str) -> str:
    """Return the table as text in one of FORMATS."""
    if form not in FORMATS:
        raise ValueError(f"the format of a table must be one of {', '.join(FORMATS)}, got {form!r}")
    return FORMATS[form](table)


def _kept(table: Table) -> list[int]:
    """Return the positions of the columns that are not empty."""
    return sorted(i for head, under in table.stacks() for i in (head, *under))


def _parts(values: Sequence[Any]) -> list[tuple[str, Callable[[Any], Any]]]:
    """Return the plain columns of a column: (suffix of the name, function that takes the part of a value)."""
    ends: dict[str, Any] = {"": None}
    if any(isinstance(value, dict) for value in values):
        ends = {"": "mean", " deviation": "deviation"}
    elif any(isinstance(value, list) for value in values):
        ends = {" low": 0, " high": 1}
    return [(end, partial(_part, key)) for end, key in ends.items()]


def _part(key: Any, value: Any) -> Any:
    return value[key] if isinstance(value, dict | list) else value


def _safe(value: Any) -> Any:
    """Quote a text that a spreadsheet would take for a formula."""
    if value is None:
        return ""
    return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") else value


def _html_class(column: Column) -> str:
    return ' class="text"' if column.words else ""


def _html_note(note: str) -> str:
    return f"<p>{markup.escape(clean(note))}</p>"


def _line(cells: Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _md(text: str) -> str:
    return re.sub(r"([|*`\[\]\\])", r"\\\1", clean(text).replace("<", "&lt;"))


def _tex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in clean(text))


def _comment(text: str) -> str:
    return " ".join(clean(text).split())
